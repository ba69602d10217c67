// Whole runs over several trainer ranks, from their configuration: every layout has the same curve.
#include "models/formats/checkpoint_reader.h"
#include "tests/apps/runs.h"

using namespace troupe;
using namespace troupe::run_testing;

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

TEST_CASE("B150 validation rows that do not divide by the ranks: the run goes to its end with one rank's losses") {
  const Workshop workshop;
  std::string text;
  while (text.size() < 94) text += "what is a row? ";
  write_file_atomically(workshop.path / "validation.txt", text.substr(0, 94));  // and a token at either end: 96
  const auto play = [&](int ranks, Watch& watch) {
    return play_pretrain(workshop.pretrain(concat("uneven-", ranks)), watch,
                         {degree(ranks), "--training.steps=3", "--evaluation.interval=1", "--checkpoint.enable=false",
                          "--checkpoint.last_save_in_hf=false", "--training.num_tokens_per_microbatch_per_dp_rank=32",
                          concat("--data.validation=", (workshop.path / "validation.txt").string())});
  };
  Watch one, two;
  REQUIRE(play(1, one) == 0);
  REQUIRE(play(2, two) == 0);
  REQUIRE(one.evaluations.size() == 4);
  REQUIRE(two.evaluations.size() == 4);
  for (size_t i = 0; i < 4; ++i) {
    CHECK(two.evaluations[i].at("validation/num_tokens") == 95);  // 3 rows of 32; nothing follows the last token
    CHECK(largest_relative_difference({two.evaluations[i].at("validation/loss")},
                                      {one.evaluations[i].at("validation/loss")}) < 1e-5);
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
