// The load of experts and its balance without a loss: counts by hand, the same over every layout and recompute, and
// routers that even out.
#include "parallel/expert_load.h"

#include "tests/doctest.h"
#include "tests/training/layout_steps.h"

namespace troupe {
namespace {

using namespace testing;

constexpr int64_t kNumExperts = 8, kNumChoices = 2;
const char* const kBias = "e_score_correction_bias";

ModelConfig load_config() {
  auto config = config_with_experts(4, kNumExperts);
  config.moe.score = RouterScore::kSigmoid;
  config.moe.choice_bias = true;
  return config;
}

LearnerOptions load_options(double rate, const std::string& recompute = "none") {
  auto options = learner_options();
  options.parallel.sharding.parameter_dtype = at::kDouble;
  options.optimizer.lr = 0;  // biases alone change: a gradient's rounding would move weights, and choices with them
  options.num_tokens_per_microbatch = 24;
  options.activation_checkpoint = recompute;
  options.expert_bias_rate = rate;
  return options;
}

/// Rows of odd lengths; five of them, so that two data ranks need one that counts for nothing.
std::vector<LanguageModelBatch> load_rows() {
  return packed_rows(5, [](int r) { return std::vector<int64_t>{5 + 2 * r}; });
}

TensorMap biases_of(const TensorMap& weights) {
  TensorMap biases;
  for (const auto& [name, tensor] : weights)
    if (name.ends_with(kBias)) biases[name] = tensor.clone();
  return biases;
}

}  // namespace

TEST_CASE("the violation is what the fullest expert has above the mean, over layers that have tokens") {
  const auto load = at::tensor({0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 6.0, 1.0, 1.0, 0.0}).view({3, 4});
  CHECK(load_violation(load) == doctest::Approx(1.0));  // of 0 and 2
  CHECK(load_violation(at::zeros({2, 4}, at::kDouble)) == 0);
}

TEST_CASE("the bias falls for experts above the mean of their layer and rises for the others") {
  const auto config = load_config();
  const auto weights = one_sided_weights(config, 2, 5, 2);
  with_one_rank(config, load_options(0.01), weights, [&](Learner& learner) {
    const auto metrics = learner.train_language_model(load_rows());
    CHECK(metrics.at("moe/max_violation") == doctest::Approx(kNumExperts / kNumChoices - 1));
    for (const auto& [name, bias] : biases_of(learner.gather_weights(at::kFloat))) {
      const auto change = bias - weights.at(name);
      for (int64_t e = 0; e < kNumExperts; ++e)
        CHECK(change[e].item<float>() == doctest::Approx(e == 2 || e == 5 ? -0.01 : 0.01).epsilon(1e-4));
    }
  });
}

TEST_CASE("B098 every layout, recomputed or not, counts each token once and moves the biases as one rank does") {
  const auto config = load_config();
  const auto weights = learner_weights(config);
  struct Result {
    TensorMap biases;
    std::vector<double> violations;
  };
  const auto run = [&](Learner& learner, int data_rank, int num_data_ranks) {
    Result result;
    for (int step = 0; step < 2; ++step) {
      const auto metrics = learner.train_language_model(share_of(load_rows(), data_rank, num_data_ranks));
      result.violations.push_back(metrics.at("moe/max_violation"));
    }
    result.biases = biases_of(learner.gather_weights(at::kFloat));
    return result;
  };
  Result expected;
  with_one_rank(config, load_options(0.05), weights, [&](Learner& learner) { expected = run(learner, 0, 1); });
  CHECK(relative_difference(expected.biases, biases_of(weights)) > 0.01);
  CHECK(expected.violations[0] > 0);
  const MeshDegrees layouts[] = {{},
                                 {.shard = 2},
                                 {.shard = 2, .expert = 2},
                                 {.replicate = 2, .context = 2},
                                 {.context = 2, .expert = 2},
                                 {.tensor = 2, .expert = 2},
                                 {.pipeline = 2, .shard = 2, .expert = 2}};
  for (const auto& degrees : layouts) {
    for (const std::string recompute : {"none", "full"}) {
      const auto what = concat(describe(degrees), ", recompute ", recompute);
      CHECK_NOTHROW(with_mesh(degrees, config, load_options(0.05, recompute), weights,
                              [&](Learner& learner, const RankGroups& groups) {
                                const auto got = run(learner, groups.data_rank(), groups.num_data_ranks());
                                for (size_t step = 0; step < 2; ++step)
                                  require(std::abs(got.violations[step] - expected.violations[step]) < 1e-12, what,
                                          ": violation ", got.violations[step], ", not ", expected.violations[step]);
                                for (const auto& [name, bias] : expected.biases)
                                  require(at::equal(got.biases.at(name), bias), what, ": ", name, " differs");
                              }));
    }
  }
}

TEST_CASE("routers that send all tokens to two experts even out") {
  const auto config = load_config();
  with_one_rank(config, load_options(0.05), one_sided_weights(config, 2, 5, 1), [&](Learner& learner) {
    std::vector<double> violations;
    for (int step = 0; step < 30; ++step)
      violations.push_back(learner.train_language_model(load_rows()).at("moe/max_violation"));
    CHECK(violations.front() > 2.5);
    CHECK(violations.back() < 1);
  });
}

TEST_CASE("a rate without a bias to move is refused; without a rate the biases stay") {
  auto config = load_config();
  const auto weights = learner_weights(config);
  with_one_rank(config, load_options(0), weights, [&](Learner& learner) {
    learner.train_language_model(load_rows());
    for (const auto& [name, bias] : biases_of(learner.gather_weights(at::kFloat)))
      CHECK(at::equal(bias, weights.at(name)));
  });
  config.moe.choice_bias = false;
  CHECK_THROWS_WITH_AS(with_one_rank(config, load_options(0.1), learner_weights(config), [](Learner&) {}),
                       doctest::Contains("training.expert_bias_rate = 0.1 needs routers with a bias"), UsageError);
}

}  // namespace troupe
