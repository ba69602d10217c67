// One GRPO step of every family: the engine samples groups, the learner steps, the engine takes the new weights.
// Sampler and trainer agree before and after (invariant 6), experts' routing included.
#include <cmath>

#include "models/formats/checkpoint_reader.h"
#include "tests/models/family_folders.h"
#include "tests/rollout/engine_helpers.h"
#include "tests/training/learner_support.h"

namespace troupe::engine_tests {
namespace {

/// Samples two groups of four and gives each sample a reward by its tokens.
std::vector<Trajectory> sample_groups(Engine& engine) {
  auto batch = generate_all(engine, make_requests(2, 4, 1.0, 12));
  for (size_t i = 0; i < batch.size(); ++i) {
    batch[i].group = i / 4;
    batch[i].total_reward = static_cast<double>(batch[i].tokens.back() % 7) / 7 + 0.01 * static_cast<double>(i % 4);
  }
  return batch;
}

}  // namespace

TEST_CASE("every family makes a GRPO step on what its sampler gave, and both sides agree before and after") {
  for (const auto& name : testing::family_folders()) {
    CAPTURE(name);
    const auto reader = open_checkpoint(testing::family_fixtures() / name);
    const auto& config = reader->config();
    const auto weights = load_weights(*reader, at::kFloat);
    EngineOptions engine_options = small_options();
    engine_options.prefill_chunk_tokens = 6;
    Engine engine(config, engine_options, nullptr);
    engine.set_weights(pack_model(config, {0, weights}, at::kFloat, 1));
    auto options = testing::learner_options();
    options.optimizer.lr = 1e-4;
    testing::with_one_rank(config, options, weights, [&](Learner& learner) {
      for (int64_t step = 0; step < 2; ++step) {
        const auto metrics = learner.train_policy(sample_groups(engine));
        CHECK(metrics.at("logprob_diff/max") < 2e-4);
        CHECK(metrics.at("logprob_diff/mean") < 2e-5);
        CHECK(std::abs(metrics.at("loss/ratio_mean") - 1) < 1e-4);
        CHECK(metrics.at("loss/ratio_clipped_frac") == 0);
        CHECK(metrics.at("grad_norm") > 0);
        CHECK(learner.step() == step + 1);
        const auto updated = learner.gather_weights(at::kFloat);
        CHECK(testing::relative_difference(updated, weights) > 1e-6);
        engine.set_weights(pack_model(config, {step + 1, updated}, at::kFloat, 1));
      }
    });
  }
}

TEST_CASE("a trainer whose experts lie over ranks agrees with the workers that it gives its weights to") {
  for (const std::string name : {"mixtral", "gpt_oss", "deepseek_v3"}) {
    CAPTURE(name);
    const auto reader = open_checkpoint(testing::family_fixtures() / name);
    const auto& config = reader->config();
    auto weights = load_weights(*reader, at::kFloat);
    Engine engine(config, small_options(), nullptr);
    engine.set_weights(pack_model(config, {0, weights}, at::kFloat, 1));
    auto options = testing::learner_options();
    options.optimizer.lr = 1e-4;
    for (int64_t step = 0; step < 2; ++step) {
      const auto batch = sample_groups(engine);
      const auto before = weights;
      testing::with_mesh(
          {.shard = 2, .expert = 2}, config, options, before, [&](Learner& learner, const RankGroups& groups) {
            const auto metrics = learner.train_policy(batch);
            require(metrics.at("logprob_diff/max") < 2e-4, "log-probs differ by ", metrics.at("logprob_diff/max"));
            require(metrics.at("grad_norm") > 0, "no gradient");
            auto updated = learner.gather_weights(at::kFloat);
            if (groups.world().rank() == 0) weights = std::move(updated);
          });
      CHECK(testing::relative_difference(weights, before) > 1e-6);
      engine.set_weights(pack_model(config, {step + 1, weights}, at::kFloat, 1));
    }
  }
}

}  // namespace troupe::engine_tests
