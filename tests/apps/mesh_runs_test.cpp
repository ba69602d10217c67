// Whole runs over meshes of ranks, from their configuration: every layout has the curve of one rank, and a run goes on
// in another layout than the one that wrote its checkpoint.
#include "models/formats/checkpoint_reader.h"
#include "tests/apps/runs.h"

using namespace troupe;
using namespace troupe::run_testing;

namespace {

std::vector<std::string> mesh(const std::vector<std::string>& keys, std::vector<std::string> more = {}) {
  for (const auto& key : keys) more.push_back("--parallelism." + key);
  return more;
}

}  // namespace

TEST_CASE("pre-training over tensor, context and pipeline ranks has one curve; any layout goes on from any") {
  const Workshop workshop;
  const std::string steps = "--training.steps=3";
  Watch one;
  REQUIRE(play_pretrain(workshop.pretrain("one"), one, {steps}) == 0);
  const std::vector<std::vector<std::string>> layouts = {
      {"tensor_parallel_degree=2", "data_parallel_shard_degree=2"},
      {"pipeline_parallel_degree=2", "context_parallel_degree=2"},
      {"pipeline_parallel_degree=2", "tensor_parallel_degree=2", "pipeline_parallel_schedule=ZBV"}};
  for (size_t i = 0; i < layouts.size(); ++i) {
    Watch watch;
    REQUIRE(play_pretrain(workshop.pretrain(concat("mesh-", i)), watch, mesh(layouts[i], {steps})) == 0);
    CHECK(watch.start.at("num_ranks") == 4);
    CHECK(largest_relative_difference(watch.curve("loss/mean"), one.curve("loss/mean")) < 1e-5);
    CHECK(largest_relative_difference(watch.curve("grad_norm"), one.curve("grad_norm")) < 1e-4);
    CHECK(largest_relative_difference({watch.evaluations.back().at("validation/loss")},
                                      {one.evaluations.back().at("validation/loss")}) < 1e-5);
    // The export is the trained model, whole, and that of one rank.
    const auto whole = open_checkpoint(workshop.path / concat("mesh-", i) / "model");
    const auto expected = open_checkpoint(workshop.path / "one" / "model");
    for (const auto& [name, info] : expected->tensors()) {
      CAPTURE(name);
      CHECK((whole->read(name, at::kFloat) - expected->read(name, at::kFloat)).abs().max().item<float>() < 1e-3);
    }
  }
  const auto manifest = nlohmann::json::parse(read_file(workshop.path / "mesh-2/checkpoints/step-3/manifest.json"));
  CHECK(manifest.at("world").at("pipeline_parallel_degree") == 2);
  CHECK(manifest.at("world").at("tensor_parallel_degree") == 2);
  // The folder of the second layout goes on in the third's.
  Watch whole, rest;
  REQUIRE(play_pretrain(workshop.pretrain("one"), whole, {"--training.steps=5"}) == 0);
  REQUIRE(play_pretrain(workshop.pretrain("mesh-1"), rest, mesh(layouts[2], {"--training.steps=5"})) == 0);
  REQUIRE(rest.steps.size() == 2);
  CHECK(largest_relative_difference(rest.curve("loss/mean"), whole.curve("loss/mean")) < 1e-5);
}

TEST_CASE("RL over pipeline and tensor ranks has the curve of one rank") {
  const Workshop workshop;
  Watch one, four;
  REQUIRE(play_rl(workshop.rl("one"), one, {"--checkpoint.last_save_in_hf=false"}) == 0);
  REQUIRE(play_rl(workshop.rl("four"), four,
                  mesh({"pipeline_parallel_degree=2", "tensor_parallel_degree=2"},
                       {"--checkpoint.last_save_in_hf=false"})) == 0);
  CHECK(four.start.at("num_ranks") == 4);
  CHECK(four.curve("reward/mean") == one.curve("reward/mean"));
  CHECK(largest_relative_difference(four.curve("loss/mean"), one.curve("loss/mean")) < 1e-3);
  CHECK(largest_relative_difference(four.curve("grad_norm"), one.curve("grad_norm")) < 1e-4);
}

TEST_CASE("meshes that cannot be are refused before anything is loaded, the numbers told") {
  const Workshop workshop;
  Watch watch;
  const auto refused = [&](const std::vector<std::string>& keys, const char* why) {
    CHECK_THROWS_WITH_AS(play_pretrain(workshop.pretrain("none"), watch, mesh(keys)), doctest::Contains(why),
                         UsageError);
    CHECK_FALSE(fs::exists(workshop.path / "none"));
  };
  refused({"expert_parallel_degree=2"}, "does not divide shard 1 * context 1 * tensor 1 = 1");
  refused({"expert_parallel_degree=2", "data_parallel_shard_degree=2"}, "has no experts to spread");
  refused({"tensor_parallel_degree=3"}, "the model's 4 attention heads do not divide by it");
  refused({"tensor_parallel_degree=8"}, "the model's 4 attention heads do not divide by it");
  refused({"pipeline_parallel_degree=8"}, "has none of the 4 layers");
  refused({"pipeline_parallel_degree=2", "pipeline_parallel_layers_per_stage=1,2"},
          "the stages have 3 layers, the model 4");
  refused({"pipeline_parallel_layers_per_stage=1;2"}, "takes numbers with commas");
  refused({"tensor_parallel_degree=4", "context_parallel_degree=4", "data_parallel_shard_degree=8"},
          "pipeline 1 * replicate 1 * shard 8 * context 4 * tensor 4 = 128 ranks");
}
