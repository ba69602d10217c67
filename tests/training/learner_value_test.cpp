// The critic against plain operations, over ranks, and that it learns what it is asked.
#include "models/decoder.h"
#include "tests/doctest.h"
#include "tests/training/learner_support.h"
#include "training/advantages.h"

namespace troupe {
namespace {

using namespace testing;

ModelConfig critic_config() {
  auto config = learner_config(false);
  config.num_labels = 1;
  return config;
}

LearnerOptions critic_options() {
  auto options = learner_options();
  options.algorithm = algorithm_preset("ppo");
  options.algorithm.num_minibatches = 1;
  options.algorithm.kl_coefficient = 0.05;
  return options;
}

Tensor plain_values(const Decoder& decoder, const Trajectory& t) {
  const auto length = static_cast<int32_t>(t.tokens.size());
  return decoder.logits(decoder.forward(at::tensor(t.tokens, at::kLong), {{{0, length, -1}}, length})).squeeze(1);
}

}  // namespace

TEST_CASE("a token's value is the score of the state before it; the critic's step equals plain autograd") {
  const auto config = critic_config();
  const auto weights = learner_weights(config, 3);
  auto options = critic_options();
  TensorMap leaves;
  for (const auto& [name, weight] : weights) leaves[name] = weight.to(at::kDouble).clone().requires_grad_();
  Decoder decoder(config);
  decoder.bind_all(leaves);
  auto batch = learner_batch(3, 4);
  double num_tokens = 0;
  for (const auto& t : batch) num_tokens += static_cast<double>(t.num_sampled_tokens());

  auto total = at::zeros({}, at::kDouble);
  std::vector<std::vector<double>> expected_values;
  for (const auto& t : batch) {
    const auto state_values = plain_values(decoder, t);
    std::vector<double> kl(t.tokens.size(), 0.0), values(t.tokens.size(), 0.0);
    for (size_t i = 1; i < t.tokens.size(); ++i) {
      if (t.loss_mask[i] == 0) continue;
      kl[i] = double{t.log_probs[i]} - double{t.reference_log_probs[i]};
      values[i] = state_values[static_cast<int64_t>(i) - 1].item<double>() + 0.1;  // the old ones differ a little
    }
    const auto rewards = token_rewards(t.loss_mask, *t.total_reward, kl, 0.05);
    const auto gae =
        generalized_advantages(t.loss_mask, rewards, values, options.algorithm.gamma, options.algorithm.lambda);
    for (size_t i = 1; i < t.tokens.size(); ++i) {
      if (t.loss_mask[i] == 0) continue;
      const auto value = state_values[static_cast<int64_t>(i) - 1];
      const auto clipped = values[i] + (value - values[i]).clamp(-0.2, 0.2);
      total = total +
              0.5 * at::maximum((value - gae.returns[i]).square(), (clipped - gae.returns[i]).square()) / num_tokens;
    }
    expected_values.push_back(values);
  }
  total.backward();
  TensorMap gradients;
  for (const auto& [name, leaf] : leaves) gradients[name] = leaf.grad().to(at::kFloat);

  for (const int num_ranks : {1, 2}) {
    options.num_tokens_per_microbatch = num_ranks == 1 ? 4096 : 16;
    with_ranks(num_ranks, config, options, weights, [&](Learner& critic, int rank) {
      auto mine = batch;
      const auto values = critic.values(mine);
      for (size_t s = 0; s < mine.size(); ++s) {
        mine[s].values.assign(expected_values[s].begin(), expected_values[s].end());
        for (size_t i = 0; i < values[s].size() && rank == 0; ++i)
          CHECK(values[s][i] ==
                doctest::Approx(mine[s].loss_mask[i] != 0 ? expected_values[s][i] - 0.1 : 0).epsilon(1e-4));
      }
      const auto metrics = critic.train_values(mine, 0.05);
      const auto found = critic.model().gather_gradients();
      if (rank != 0) return;
      CHECK(metrics.at("critic/loss") == doctest::Approx(total.item<double>()).epsilon(1e-5));
      CHECK(relative_difference(found, gradients) < 2e-5);
    });
  }
}

TEST_CASE("a critic learns to explain its returns; a language model is no critic") {
  auto options = critic_options();
  options.algorithm.kl_coefficient = 0;
  options.algorithm.value_clip = 0;
  options.optimizer.lr = 3e-3;
  auto batch = learner_batch(4, 4);
  with_one_rank(critic_config(), options, learner_weights(critic_config(), 1, 0.1), [&](Learner& critic) {
    const auto step = [&] {
      const auto values = critic.values(batch);
      for (size_t s = 0; s < batch.size(); ++s) batch[s].values = values[s];
      return critic.train_values(batch, 0);
    };
    const auto first = step();
    for (int i = 0; i < 60; ++i) step();
    const auto last = step();
    CHECK(last.at("critic/loss") < 0.2 * first.at("critic/loss"));
    CHECK(last.at("critic/explained_variance") > 0.7);
    CHECK(last.at("critic/value_mean") == doctest::Approx(last.at("critic/return_mean")).epsilon(0.1));
  });
  with_one_rank(learner_config(), options, learner_weights(learner_config()),
                [&](Learner& policy) { CHECK_THROWS_AS(policy.values(batch), Error); });
}

}  // namespace troupe
