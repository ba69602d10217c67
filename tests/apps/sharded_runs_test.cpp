// Whole runs over several trainer ranks, from their configuration: curves, checkpoints, resumes.
#include <sys/resource.h>

#include <csignal>

#include "models/formats/checkpoint_reader.h"
#include "parallel/checkpoint.h"
#include "tests/apps/runs.h"

using namespace troupe;
using namespace troupe::run_testing;

namespace {

std::string degree(int ranks) { return concat("--parallelism.data_parallel_shard_degree=", ranks); }

/// The manifest's hashes of every piece: equal where weights and optimizer states are equal bit for bit.
nlohmann::json hashes(const fs::path& checkpoint) {
  const auto manifest = nlohmann::json::parse(read_file(checkpoint / "manifest.json"));
  return {manifest.at("tensors"), manifest.at("optimizer")};
}

nlohmann::json state_of(const fs::path& checkpoint) {
  return nlohmann::json::parse(read_file(checkpoint / "state.json"));
}

}  // namespace

TEST_CASE("pre-training over 1, 2 and 4 ranks has one curve, and its checkpoints tell the layout") {
  const Workshop workshop;
  Watch one;
  REQUIRE(play_pretrain(workshop.pretrain("one"), one, {"--checkpoint.last_save_in_hf=false"}) == 0);
  const auto losses = one.curve("loss/mean");
  REQUIRE(losses.size() == 6);
  CHECK(losses.back() < losses.front() - 0.2);
  for (const int ranks : {2, 4}) {
    const auto name = concat("ranks-", ranks);
    Watch watch;
    REQUIRE(play_pretrain(workshop.pretrain(name), watch, {degree(ranks)}) == 0);
    CHECK(watch.start.at("num_ranks") == ranks);
    CHECK(largest_relative_difference(watch.curve("loss/mean"), losses) < 1e-5);
    CHECK(largest_relative_difference(watch.curve("grad_norm"), one.curve("grad_norm")) < 1e-4);
    CHECK(largest_relative_difference({watch.evaluations.back().at("validation/loss")},
                                      {one.evaluations.back().at("validation/loss")}) < 1e-5);
    const auto checkpoint = workshop.path / name / "checkpoints/step-6";
    const auto manifest = nlohmann::json::parse(read_file(checkpoint / "manifest.json"));
    CHECK(manifest.at("world").at("data_parallel_shard_degree") == ranks);
    CHECK(manifest.at("optimizer").at("model.norm.weight").contains("exp_avg_sq"));
    CHECK(fs::exists(checkpoint / concat("rank-", ranks - 1, ".safetensors")));
    // The export is the trained model, whole.
    const auto reader = open_checkpoint(workshop.path / name / "model");
    CHECK(reader->read("model.embed_tokens.weight", at::kFloat).sizes() == at::IntArrayRef({257, 128}));
  }
}

TEST_CASE("replicas of shards and every way of resharding have the same curve") {
  const Workshop workshop;
  Watch one, hybrid, copies;
  REQUIRE(play_pretrain(workshop.pretrain("one"), one, {"--training.steps=3"}) == 0);
  REQUIRE(play_pretrain(workshop.pretrain("hybrid"), hybrid,
                        {"--training.steps=3", degree(2), "--parallelism.data_parallel_replicate_degree=2"}) == 0);
  REQUIRE(play_pretrain(workshop.pretrain("copies"), copies,
                        {"--training.steps=3", "--parallelism.data_parallel_replicate_degree=2"}) == 0);
  for (const auto* watch : {&hybrid, &copies})
    CHECK(largest_relative_difference(watch->curve("loss/mean"), one.curve("loss/mean")) < 1e-5);
  CHECK(hybrid.start.at("num_ranks") == 4);
  // One replica writes for both; whatever layout goes on.
  const auto checkpoint = workshop.path / "hybrid/checkpoints/step-3";
  CHECK(fs::exists(checkpoint / "rank-1.safetensors"));
  CHECK(!fs::exists(checkpoint / "rank-2.safetensors"));
  Watch whole, rest;
  REQUIRE(play_pretrain(workshop.pretrain("one"), whole, {"--training.steps=5"}) == 0);
  REQUIRE(play_pretrain(workshop.pretrain("hybrid"), rest,
                        {"--training.steps=5", "--parallelism.data_parallel_replicate_degree=4"}) == 0);
  CHECK(largest_relative_difference(rest.curve("loss/mean"), whole.curve("loss/mean")) < 1e-5);
  for (const std::string mode : {"always", "never"}) {
    Watch watch;
    REQUIRE(play_pretrain(
                workshop.pretrain(mode), watch,
                {"--training.steps=3", degree(2), concat("--parallelism.fsdp_reshard_after_forward=", mode)}) == 0);
    CHECK(largest_relative_difference(watch.curve("loss/mean"), one.curve("loss/mean")) < 1e-5);
  }
}

TEST_CASE("RL over 1, 2 and 4 ranks has one curve") {
  const Workshop workshop;
  Watch one;
  REQUIRE(play_rl(workshop.rl("one"), one, {"--checkpoint.last_save_in_hf=false"}) == 0);
  REQUIRE(one.steps.size() == 3);
  CHECK(one.curve("grad_norm")[0] > 0);
  for (const int ranks : {2, 4}) {
    Watch watch;
    REQUIRE(play_rl(workshop.rl(concat("ranks-", ranks)), watch, {degree(ranks)}) == 0);
    CHECK(watch.curve("reward/mean") == one.curve("reward/mean"));
    CHECK(largest_relative_difference(watch.curve("loss/mean"), one.curve("loss/mean")) < 1e-3);
    CHECK(largest_relative_difference(watch.curve("grad_norm"), one.curve("grad_norm")) < 1e-4);
    CHECK(fs::exists(workshop.path / concat("ranks-", ranks) / "checkpoints/step-3/groups.bin"));
  }
}

TEST_CASE("a pre-training run that stops and resumes is the unbroken run bit for bit, in any number of ranks") {
  const Workshop workshop;
  for (const int ranks : {1, 2}) {
    CAPTURE(ranks);
    const auto whole = concat("whole-", ranks), parts = concat("parts-", ranks);
    Watch unbroken, first, second;
    REQUIRE(play_pretrain(workshop.pretrain(whole), unbroken, {degree(ranks)}) == 0);
    REQUIRE(play_pretrain(workshop.pretrain(parts), first, {degree(ranks), "--training.steps=3"}) == 0);
    CHECK(first.steps.size() == 3);
    REQUIRE(play_pretrain(workshop.pretrain(parts), second, {degree(ranks)}) == 0);
    CHECK(second.start.at("first_step") == 3);
    CHECK(second.start.at("resumed_from") == (workshop.path / parts / "checkpoints/step-3").string());
    auto curve = first.curve("loss/mean");
    for (const auto loss : second.curve("loss/mean")) curve.push_back(loss);
    CHECK(curve == unbroken.curve("loss/mean"));
    const auto end = workshop.path / whole / "checkpoints/step-6",
               resumed = workshop.path / parts / "checkpoints/step-6";
    CHECK(hashes(resumed) == hashes(end));
    CHECK(state_of(resumed).at("cursor") == state_of(end).at("cursor"));
    CHECK(state_of(resumed).at("learner") == state_of(end).at("learner"));
    CHECK(read_file(workshop.path / parts / "model/model.safetensors") ==
          read_file(workshop.path / whole / "model/model.safetensors"));
  }
  // Two ranks' checkpoint goes on in four: the same curve within rounding.
  Watch unbroken, first, second;
  REQUIRE(play_pretrain(workshop.pretrain("mixed"), first, {degree(2), "--training.steps=3"}) == 0);
  REQUIRE(play_pretrain(workshop.pretrain("mixed"), second, {degree(4)}) == 0);
  REQUIRE(play_pretrain(workshop.pretrain("alone"), unbroken) == 0);
  auto curve = first.curve("loss/mean");
  for (const auto loss : second.curve("loss/mean")) curve.push_back(loss);
  CHECK(largest_relative_difference(curve, unbroken.curve("loss/mean")) < 1e-5);
}

TEST_CASE("a checkpoint that cannot be written ends the run with its path, and the older one resumes") {
  const Workshop workshop;
  for (const std::string mode : {"async", "disabled"}) {
    CAPTURE(mode);
    const std::vector<std::string> options{degree(2), concat("--checkpoint.async_mode=", mode)};
    const auto with = [&](const std::string& more) {
      auto all = options;
      all.push_back(more);
      return all;
    };
    Watch before, failed, after;
    REQUIRE(play_pretrain(workshop.pretrain(mode), before, with("--training.steps=2")) == 0);
    // A file size limit stands for the full disk.
    rlimit usual{};
    ::getrlimit(RLIMIT_FSIZE, &usual);
    const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit small{1 << 20, usual.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &small);
    const auto code = play_pretrain(workshop.pretrain(mode), failed, with("--training.steps=6"));
    ::setrlimit(RLIMIT_FSIZE, &usual);
    std::signal(SIGXFSZ, old_handler);
    CHECK(code == 1);
    const auto log = read_file(workshop.path / mode / "log.txt");
    CHECK(log.find("checkpoints/step-4 was not written") != std::string::npos);
    CHECK(!fs::exists(workshop.path / mode / "checkpoints/step-4"));
    REQUIRE(play_pretrain(workshop.pretrain(mode), after, with("--training.steps=4")) == 0);
    CHECK(after.start.at("first_step") == 2);
    CHECK(fs::exists(workshop.path / mode / "checkpoints/step-4/manifest.json"));
  }
}

TEST_CASE("a run that begins anew sets the checkpoints of the old one aside") {
  const Workshop workshop;
  Watch first, second, third;
  REQUIRE(play_pretrain(workshop.pretrain("again"), first, {"--training.steps=4"}) == 0);
  REQUIRE(play_pretrain(workshop.pretrain("again"), second, {"--training.steps=2", "--checkpoint.resume=never"}) == 0);
  CHECK(second.start.at("first_step") == 0);
  CHECK(fs::exists(workshop.path / "again/checkpoints/step-4.set-aside"));
  REQUIRE(play_pretrain(workshop.pretrain("again"), third, {"--training.steps=4"}) == 0);
  CHECK(third.start.at("first_step") == 2);  // not 4, of the other run
  CHECK(third.curve("loss/mean").back() == first.curve("loss/mean").back());
}
