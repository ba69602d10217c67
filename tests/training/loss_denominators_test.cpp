// What leaves the loss, and by what the rest is divided: over-long samples, and the KL term in each aggregation.
#include "base/error.h"
#include "training/policy_samples.h"
#include "tests/doctest.h"
#include "tests/training/learner_support.h"

namespace troupe {
namespace {

using namespace testing;

Trajectory make(uint32_t index, std::vector<int32_t> prompt, std::vector<int32_t> completion, double reward) {
  Trajectory t;
  t.sample_id = make_sample_id(0, index);
  t.prompt_length = static_cast<int32_t>(prompt.size());
  t.tokens = std::move(prompt);
  t.tokens.insert(t.tokens.end(), completion.begin(), completion.end());
  t.loss_mask.assign(t.tokens.size(), 1);
  std::fill_n(t.loss_mask.begin(), t.prompt_length, 0);
  t.log_probs.assign(t.tokens.size(), 0);
  t.versions = {{t.prompt_length, 0}};
  t.total_reward = reward;
  return t;
}

double k3(double log_prob, double reference) { return std::exp(reference - log_prob) - (reference - log_prob) - 1; }

}  // namespace

TEST_CASE("B040 over-long is what ended at its limit, whatever ids the prompt holds") {
  // The trajectories that the engine makes in tests/rollout/stop_rules_test.cpp; the end id is 1.
  std::vector<Trajectory> batch = {make(0, {0, 1}, {2, 3}, 1), make(1, {0, 1}, {2, 3, 4, 1}, 0)};
  batch[0].finish_reason = FinishReason::kLength;
  AlgorithmOptions options;
  options.overlong = "mask";
  const auto samples = prepare_samples(batch, options, 0);
  CHECK(samples.num_overlong == 1);
  CHECK((samples.takes_part == std::vector<uint8_t>{0, 1}));
  CHECK(count_loss_tokens(batch, samples, std::vector<size_t>{0, 1}).num_tokens == 4);
}

TEST_CASE("B005 what is masked as over-long leaves the denominator too; all of it masked makes no step") {
  const auto config = learner_config();
  auto options = learner_options();
  options.algorithm.overlong = "mask";
  options.algorithm.zero_variance = "keep";
  options.algorithm.kl_coefficient = 1;
  with_one_rank(config, options, learner_weights(config), [&](Learner& learner) {
    auto batch = learner_batch(2, 3);
    for (auto& t : batch) t.total_reward = 1;
    batch[2].finish_reason = FinishReason::kLength;
    // No advantage anywhere: the loss is the mean KL of the tokens that count.
    const auto log_probs = learner.log_probs(batch, Learner::Wanted::kSampledTokens);
    double sum = 0, num_tokens = 0;
    for (size_t s = 0; s < batch.size(); ++s)
      for (size_t i = 0; i < batch[s].tokens.size(); ++i)
        if (s != 2 && batch[s].loss_mask[i] != 0) {
          sum += k3(log_probs[s][i], batch[s].reference_log_probs[i]);
          num_tokens += 1;
        }
    REQUIRE(batch[2].num_sampled_tokens() > 0);
    const auto metrics = learner.train_policy(batch);
    CHECK(metrics.at("train_batch/num_overlong") == 1);
    CHECK(metrics.at("train_batch/num_tokens") == num_tokens);
    CHECK(metrics.at("kl/mean") == doctest::Approx(sum / num_tokens).epsilon(1e-4));
    CHECK(metrics.at("loss/mean") == doctest::Approx(metrics.at("kl/mean")).epsilon(1e-6));
    CHECK(metrics.at("grad_norm") > 0);

    for (auto& t : batch) t.finish_reason = FinishReason::kLength;
    const auto before = learner.gather_weights(at::kFloat);
    const auto nothing = learner.train_policy(batch);
    CHECK(nothing.at("train_batch/num_overlong") == static_cast<double>(batch.size()));
    CHECK(nothing.at("loss/mean") == 0);
    CHECK(nothing.at("grad_norm") == 0);
    for (const auto& [name, value] : nothing) CHECK_MESSAGE(std::isfinite(value), name);
    CHECK(learner.step() == 1);
    CHECK(relative_difference(learner.gather_weights(at::kFloat), before) == 0);
  });
}

TEST_CASE("B006 the KL term is aggregated as the policy loss is, in every mode") {
  const auto config = learner_config();
  const auto weights = learner_weights(config);
  const std::vector<std::vector<double>> distances = {{0.4}, {-0.3, 0.8, 0.1}};  // log-prob minus the reference's
  const auto kl = [&](size_t s, size_t i) { return k3(distances[s][i], 0); };
  const double first = kl(0, 0), second = kl(1, 0) + kl(1, 1) + kl(1, 2);
  struct Mode {
    const char* aggregation;
    double policy, kl;
  };
  // At ratio 1 a token's policy loss is -A: -1 once, then 1 three times.
  for (const auto& mode :
       {Mode{"sequence-mean", 0, (first + second / 3) / 2}, Mode{"token-mean", 0.5, (first + second) / 4},
        Mode{"constant", 0.25, (first + second) / 8}}) {
    CAPTURE(mode.aggregation);
    auto options = learner_options();
    options.algorithm.aggregation = mode.aggregation;
    options.algorithm.constant_length = 4;
    options.algorithm.advantage_std = "none";
    options.algorithm.kl_coefficient = 0.1;
    with_one_rank(config, options, weights, [&](Learner& learner) {
      std::vector<Trajectory> batch = {make(0, {1, 2, 3}, {7}, 1), make(1, {1, 2, 3}, {8, 9, 10}, -1)};
      const auto log_probs = learner.log_probs(batch, Learner::Wanted::kSampledTokens);
      for (size_t s = 0; s < batch.size(); ++s) {
        batch[s].log_probs = batch[s].reference_log_probs = log_probs[s];
        for (size_t i = 0; i < distances[s].size(); ++i)
          batch[s].reference_log_probs[3 + i] -= static_cast<float>(distances[s][i]);
      }
      const auto metrics = learner.train_policy(batch);
      CHECK(metrics.at("loss/mean") == doctest::Approx(mode.policy + 0.1 * mode.kl).epsilon(1e-5));
      CHECK(metrics.at("kl/mean") == doctest::Approx((first + second) / 4).epsilon(1e-5));
      CHECK(metrics.at("loss/ratio_mean") == doctest::Approx(1).epsilon(1e-6));
    });
  }
}

}  // namespace troupe
