// Whole runs that end and go on: resumes, saves that fail, runs that begin anew.
#include <sys/resource.h>

#include <csignal>

#include "tests/apps/runs.h"

using namespace troupe;
using namespace troupe::run_testing;

namespace {

/// The manifest's hashes of every piece: equal where weights and optimizer states are equal bit for bit.
nlohmann::json hashes(const fs::path& checkpoint) {
  const auto manifest = nlohmann::json::parse(read_file(checkpoint / "manifest.json"));
  return {manifest.at("tensors"), manifest.at("optimizer")};
}

nlohmann::json state_of(const fs::path& checkpoint) {
  return nlohmann::json::parse(read_file(checkpoint / "state.json"));
}

}  // namespace

TEST_CASE("a pre-training run that stops and resumes is the unbroken run bit for bit, in any number of ranks") {
  const Workshop workshop;
  std::vector<double> curve_of_one;
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
    if (ranks == 1) curve_of_one = curve;
    const auto end = workshop.path / whole / "checkpoints/step-6",
               resumed = workshop.path / parts / "checkpoints/step-6";
    CHECK(hashes(resumed) == hashes(end));
    CHECK(state_of(resumed).at("cursor") == state_of(end).at("cursor"));
    CHECK(state_of(resumed).at("learner") == state_of(end).at("learner"));
    CHECK(read_file(workshop.path / parts / "model/model.safetensors") ==
          read_file(workshop.path / whole / "model/model.safetensors"));
  }
  // Two ranks' checkpoint goes on in four: the same curve within rounding.
  Watch first, second;
  REQUIRE(play_pretrain(workshop.pretrain("mixed"), first, {degree(2), "--training.steps=3"}) == 0);
  REQUIRE(play_pretrain(workshop.pretrain("mixed"), second, {degree(4)}) == 0);
  auto curve = first.curve("loss/mean");
  for (const auto loss : second.curve("loss/mean")) curve.push_back(loss);
  CHECK(largest_relative_difference(curve, curve_of_one) < 1e-5);
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

TEST_CASE("what a resume cannot take up is refused at the start, by the names of the keys") {
  const Workshop workshop;
  Watch watch;
  const std::vector<std::string> asynchronous{"--run.deterministic=false", "--async_loop.target_offpolicy_steps=1"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), asynchronous.begin(), asynchronous.end());
    return more;
  };
  REQUIRE(play_rl(workshop.rl("slots"), watch, with({"--training.steps=2", "--checkpoint.interval=1"})) == 0);
  fs::remove_all(workshop.path / "slots/checkpoints/step-2");
  CHECK_THROWS_WITH_AS(play_rl(workshop.rl("slots"), watch, with({"--async_loop.num_prompts_per_train_step=1"})),
                       doctest::Contains("async_loop.num_prompts_per_train_step * (async_loop"), UsageError);
  CHECK_THROWS_WITH_AS(play_pretrain(workshop.pretrain("slots"), watch),
                       doctest::Contains("is a checkpoint of reinforcement learning"), UsageError);
  CHECK(play_rl(workshop.rl("slots"), watch, with({})) == 0);
  // Where no checkpoint could be written, no step is trained for nothing.
  fs::create_directories(workshop.path / "blocked");
  write_file_atomically(workshop.path / "blocked/checkpoints", "a file in the way");
  CHECK_THROWS_WITH_AS(play_pretrain(workshop.pretrain("blocked"), watch), doctest::Contains("blocked/checkpoints"),
                       Error);
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
