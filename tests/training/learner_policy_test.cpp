// The policy step against plain autograd, and against itself over ranks, budgets and mini-batches.
#include <fstream>
#include <limits>

#include "models/decoder.h"
#include "training/advantages.h"
#include "training/kl.h"
#include "training/policy_samples.h"
#include "tests/doctest.h"
#include "tests/training/learner_support.h"

namespace troupe {
namespace {

using namespace testing;

/// GRPO loss and gradient by plain operations: one row a sample, whole logits, no packing.
struct Plain {
  double loss = 0;
  TensorMap gradients;
};

Plain plain_step(const ModelConfig& config, const TensorMap& weights, const std::vector<Trajectory>& batch,
                 const AlgorithmOptions& options) {
  TensorMap leaves;
  for (const auto& [name, weight] : weights) leaves[name] = weight.to(at::kDouble).clone().requires_grad_();
  Decoder decoder(config);
  decoder.bind_all(leaves);
  std::vector<std::optional<double>> rewards;
  std::vector<uint64_t> groups;
  double num_tokens = 0;
  for (const auto& t : batch) {
    rewards.push_back(t.total_reward);
    groups.push_back(t.group);
    num_tokens += static_cast<double>(t.num_sampled_tokens());
  }
  const auto advantages = group_advantages(rewards, groups, GroupBaseline::kGroupMean, AdvantageStd::kSample);
  auto total = at::zeros({}, at::kDouble);
  for (size_t s = 0; s < batch.size(); ++s) {
    const auto& t = batch[s];
    const auto length = static_cast<int32_t>(t.tokens.size());
    const auto tokens = at::tensor(t.tokens, at::kLong);
    const auto logits = decoder.logits(decoder.forward(tokens, {{{0, length, -1}}, length}));
    const auto log_p = at::log_softmax(logits / options.temperature, 1);
    for (int32_t i = 1; i < length; ++i) {
      if (t.loss_mask[static_cast<size_t>(i)] == 0) continue;
      const auto log_prob = log_p[i - 1][t.tokens[static_cast<size_t>(i)]];
      const auto ratio = (log_prob - double{t.log_probs[static_cast<size_t>(i)]}).exp();
      const double a = advantages.advantage[s];
      auto loss = at::maximum(-a * ratio, -a * ratio.clamp(1 - options.clip_low, 1 + options.clip_high));
      const auto reference = at::tensor(double{t.reference_log_probs[static_cast<size_t>(i)]}, at::kDouble);
      if (options.kl_coefficient > 0)
        loss = loss + options.kl_coefficient * kl_estimate(KlEstimator::kK3, log_prob, reference);
      const auto entropy = -(log_p[i - 1].exp() * log_p[i - 1]).sum();
      total = total + (loss - options.entropy_coefficient * entropy) / num_tokens;
    }
  }
  total.backward();
  Plain plain;
  plain.loss = total.item<double>();
  for (const auto& [name, leaf] : leaves) plain.gradients[name] = leaf.grad().to(at::kFloat);
  return plain;
}

}  // namespace

TEST_CASE("loss and gradient of a policy step equal plain autograd in float64") {
  for (const bool tied : {true, false}) {
    const auto config = learner_config(tied);
    const auto weights = learner_weights(config);
    const auto batch = learner_batch();
    auto options = learner_options();
    options.algorithm.kl_coefficient = 0.1;
    options.algorithm.entropy_coefficient = 0.02;
    options.algorithm.temperature = 0.7;
    options.algorithm.zero_variance = "keep";
    const auto plain = plain_step(config, weights, batch, options.algorithm);
    with_one_rank(config, options, weights, [&](Learner& learner) {
      const auto metrics = learner.train_policy(batch);
      CHECK(metrics.at("loss/mean") == doctest::Approx(plain.loss).epsilon(1e-4));
      CHECK(relative_difference(learner.model().gather_gradients(), plain.gradients) < 1e-4);
      CHECK(metrics.at("skipped") == 0);
      CHECK(learner.step() == 1);
    });
  }
}

TEST_CASE("B001 B002 B017 1, 2 and 4 ranks and any budget give the same gradients each step") {
  const auto config = learner_config();
  const auto weights = learner_weights(config);
  const auto batch = learner_batch(3, 5);
  for (const std::string aggregation : {"token-mean", "sequence-mean", "constant"}) {
    auto options = learner_options();
    options.algorithm.aggregation = aggregation;
    options.algorithm.constant_length = 10;
    std::vector<TensorMap> expected;
    with_one_rank(config, options, weights, [&](Learner& learner) {
      for (int step = 0; step < 3; ++step) {
        learner.train_policy(batch);
        expected.push_back(learner.model().gather_gradients());
      }
    });
    for (const auto& [num_ranks, budget] : {std::pair{1, 20}, {2, 4096}, {4, 25}}) {
      options.num_tokens_per_microbatch = budget;
      with_ranks(num_ranks, config, options, weights, [&](Learner& learner, int rank) {
        for (size_t step = 0; step < expected.size(); ++step) {
          const auto metrics = learner.train_policy(batch);
          const auto gradients = learner.model().gather_gradients();
          if (rank != 0) continue;
          CHECK(relative_difference(gradients, expected[step]) < (step == 0 ? 1e-6 : 1e-4));
          CHECK(metrics.at("train_batch/num_trained_tokens") == metrics.at("train_batch/num_tokens"));
        }
      });
    }
  }
}

TEST_CASE("B030 B036 the ratio is exactly 1 on unchanged weights, at any temperature") {
  const auto config = learner_config();
  const auto weights = learner_weights(config);
  for (const double temperature : {0.5, 1.0}) {
    auto options = learner_options();
    options.algorithm.temperature = temperature;
    with_one_rank(config, options, weights, [&](Learner& learner) {
      auto batch = learner_batch();
      const auto log_probs = learner.log_probs(batch, Learner::Wanted::kSampledTokens);
      for (size_t s = 0; s < batch.size(); ++s) batch[s].log_probs = log_probs[s];
      const auto metrics = learner.train_policy(batch);
      CHECK(metrics.at("loss/ratio_mean") == doctest::Approx(1).epsilon(1e-6));
      CHECK(metrics.at("logprob_diff/max") < 5e-6);
      CHECK(metrics.at("loss/ratio_clipped_frac") == 0);
    });
  }
}

TEST_CASE("log-probs of every token equal a plain log-softmax, whatever the ranks") {
  const auto config = learner_config();
  const auto weights = learner_weights(config);
  const auto batch = learner_batch(2, 3);
  Decoder decoder(config);
  decoder.bind_all(weights);
  for (const int num_ranks : {1, 3}) {
    with_ranks(num_ranks, config, learner_options(), weights, [&](Learner& learner, int) {
      const auto log_probs = learner.log_probs(batch);
      for (size_t s = 0; s < batch.size(); ++s) {
        const auto length = static_cast<int32_t>(batch[s].tokens.size());
        const auto tokens = at::tensor(batch[s].tokens, at::kLong);
        const auto log_p = at::log_softmax(decoder.logits(decoder.forward(tokens, {{{0, length, -1}}, length})), 1);
        CHECK(log_probs[s][0] == 0);
        for (int32_t i = 1; i < length; ++i) {
          const auto expected = log_p[i - 1][batch[s].tokens[static_cast<size_t>(i)]].item<float>();
          CHECK(log_probs[s][static_cast<size_t>(i)] == doctest::Approx(expected).epsilon(1e-4));
        }
      }
    });
  }
}

TEST_CASE("B005 constant groups are skipped, and counted where they are kept; nothing left makes no step") {
  const auto config = learner_config();
  const auto weights = learner_weights(config);
  auto batch = learner_batch(2, 4);
  for (size_t s = 0; s < 4; ++s) batch[s].total_reward = 1;
  double num_all = 0, num_second = 0;
  for (size_t s = 0; s < batch.size(); ++s) {
    num_all += static_cast<double>(batch[s].num_sampled_tokens());
    if (s >= 4) num_second += static_cast<double>(batch[s].num_sampled_tokens());
  }
  double norms[2] = {0, 0};
  int which = 0;
  for (const std::string mode : {"drop", "keep"}) {
    auto options = learner_options();
    options.algorithm.zero_variance = mode;
    with_one_rank(config, options, weights, [&](Learner& learner) {
      const auto metrics = learner.train_policy(batch);
      norms[which] = metrics.at("grad_norm");
      CHECK(metrics.at("train_batch/num_trained_tokens") == num_second);
      CHECK(metrics.at("train_batch/num_tokens") == (mode == "drop" ? num_second : num_all));
      CHECK(metrics.at("train_batch/num_zero_variance_groups") == 1);
      auto constant = batch;
      for (auto& t : constant) t.total_reward = 2;
      const auto before = learner.gather_weights(at::kFloat);
      const auto nothing = learner.train_policy(constant);
      CHECK(nothing.at("loss/mean") == 0);
      CHECK(nothing.at("grad_norm") == 0);
      CHECK(relative_difference(learner.gather_weights(at::kFloat), before) == 0);
      CHECK(learner.step() == 1);
    });
    ++which;
  }
  CHECK(norms[1] == doctest::Approx(norms[0] * num_second / num_all).epsilon(1e-4));
}

TEST_CASE("over-long completions leave the loss, failed rewards too") {
  const auto config = learner_config();
  auto batch = learner_batch(2, 4);
  batch[1].finish_reason = FinishReason::kLength;
  batch[6].total_reward.reset();
  auto options = learner_options();
  options.algorithm.overlong = "mask";
  with_one_rank(config, options, learner_weights(config), [&](Learner& learner) {
    const auto metrics = learner.train_policy(batch);
    CHECK(metrics.at("train_batch/num_overlong") == 1);
    CHECK(metrics.at("train_batch/num_failed_rewards") == 1);
    double expected = 0;
    for (size_t s = 0; s < batch.size(); ++s)
      if (s != 1 && s != 6) expected += static_cast<double>(batch[s].num_sampled_tokens());
    CHECK(metrics.at("train_batch/num_tokens") == expected);
  });
}

TEST_CASE("positive advantages are scaled, negative ones stay") {
  const auto batch = learner_batch();
  AlgorithmOptions plain, scaled;
  scaled.positive_advantage_scale = 0.25;
  const auto before = prepare_samples(batch, plain, 0), after = prepare_samples(batch, scaled, 0);
  bool has_positive = false, has_negative = false;
  for (size_t s = 0; s < batch.size(); ++s)
    for (size_t t = 0; t < before.advantages[s].size(); ++t) {
      const double advantage = before.advantages[s][t];
      CHECK(after.advantages[s][t] == (advantage > 0 ? 0.25 * advantage : advantage));
      has_positive |= advantage > 0;
      has_negative |= advantage < 0;
    }
  CHECK(has_positive);
  CHECK(has_negative);
  scaled.positive_advantage_scale = -1;
  CHECK_THROWS_WITH_AS(check_algorithm(scaled), doctest::Contains("algorithm.positive_advantage_scale"), UsageError);
}

TEST_CASE("epochs and mini-batches each make a step, and the anchor stays that of the batch") {
  const auto config = learner_config();
  auto options = learner_options();
  options.algorithm.num_epochs = 2;
  options.algorithm.num_minibatches = 3;
  options.algorithm.old_log_probs = "recomputed";
  options.algorithm.correction = "token-truncate";
  with_ranks(2, config, options, learner_weights(config), [&](Learner& learner, int) {
    const auto metrics = learner.train_policy(learner_batch(6, 3));
    CHECK(learner.step() == 6);
    CHECK(metrics.at("loss/ratio_mean") != doctest::Approx(1).epsilon(1e-6));
    CHECK(metrics.at("loss/ratio_mean") == doctest::Approx(1).epsilon(0.2));
    CHECK(metrics.at("correction/weight_mean") > 0);
  });
}

TEST_CASE("every algorithm of the list makes a finite step that ranks agree on") {
  const auto config = learner_config();
  const auto weights = learner_weights(config);
  auto batch = learner_batch(2, 4);
  for (auto& t : batch) {
    t.values.assign(t.tokens.size(), 0.3f);
    t.baseline_reward = 0.4;
  }
  for (const auto& name : known_algorithms()) {
    CAPTURE(name);
    auto options = learner_options();
    options.algorithm = algorithm_preset(name);
    complete_algorithm(options.algorithm, 8);
    options.algorithm.kl_coefficient = 0.05;
    options.algorithm.num_minibatches = 1;
    TensorMap expected;
    with_one_rank(config, options, weights, [&](Learner& learner) {
      const auto metrics = learner.train_policy(batch);
      CHECK(metrics.at("grad_norm") > 0);
      CHECK(std::isfinite(metrics.at("loss/mean")));
      expected = learner.model().gather_gradients();
    });
    with_ranks(2, config, options, weights, [&](Learner& learner, int rank) {
      learner.train_policy(batch);
      const auto gradients = learner.model().gather_gradients();
      if (rank == 0) CHECK(relative_difference(gradients, expected) < 1e-6);
    });
  }
}

TEST_CASE("a non-finite loss skips the update, and several in a row stop the run") {
  const auto config = learner_config();
  auto batch = learner_batch();
  auto bad = batch;
  bad[2].log_probs[static_cast<size_t>(bad[2].prompt_length)] = std::numeric_limits<float>::quiet_NaN();
  auto options = learner_options();
  options.skip_nonfinite_steps = 2;
  with_ranks(2, config, options, learner_weights(config), [&](Learner& learner, int) {
    const auto before = learner.gather_weights(at::kFloat);
    CHECK(learner.train_policy(bad).at("skipped") == 1);
    CHECK(relative_difference(learner.gather_weights(at::kFloat), before) == 0);
    CHECK(learner.step() == 0);
    CHECK(learner.train_policy(batch).at("skipped") == 0);  // a good one ends the count
    CHECK(learner.train_policy(bad).at("skipped") == 1);
    CHECK_THROWS_AS(learner.train_policy(bad), Error);
  });
}

TEST_CASE("B123 memory does not grow with the number of micro-batches") {
  const auto resident_pages = [] {
    int64_t size = 0, resident = 0;
    std::ifstream("/proc/self/statm") >> size >> resident;
    return static_cast<double>(resident);
  };
  const auto config = learner_config();
  auto options = learner_options();
  options.num_tokens_per_microbatch = 30;
  with_one_rank(config, options, learner_weights(config), [&](Learner& learner) {
    const auto batch = learner_batch(8, 8);
    double num_microbatches = 0, early = 0;
    while (num_microbatches < 250) {
      num_microbatches += learner.train_policy(batch).at("train_batch/num_microbatches");
      if (early == 0 && num_microbatches >= 50) early = resident_pages();
    }
    CHECK(resident_pages() < early * 1.02);
  });
}

TEST_CASE("what a step lacks is named") {
  const auto config = learner_config();
  auto options = learner_options();
  options.algorithm.kl_coefficient = 0.1;
  options.max_context_length = 64;
  with_one_rank(config, options, learner_weights(config), [&](Learner& learner) {
    auto batch = learner_batch();
    batch[1].reference_log_probs.clear();
    CHECK_THROWS_WITH_AS(learner.train_policy(batch),
                         "sample 1: no reference log-probs, which algorithm.kl_coefficient asks for", Error);
    batch = learner_batch();
    batch[2].tokens.resize(65);
    CHECK_THROWS_AS(learner.train_policy(batch), Error);
  });
  options.optimizer.name = "sgd";
  CHECK_THROWS_WITH_AS(with_one_rank(config, options, learner_weights(config), [](Learner&) {}),
                       R"(optimizer.name = "sgd" is unknown; known: "adamw")", UsageError);
}

}  // namespace troupe
