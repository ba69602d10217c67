// The balancing loss of routers against its definition through autograd, over layouts and recompute.
#include "parallel/router_balance.h"

#include "tests/doctest.h"
#include "tests/training/layout_steps.h"

namespace troupe {
namespace {

using namespace testing;

constexpr int64_t kNumExperts = 4, kNumChoices = 2;
constexpr double kCoefficient = 0.3;

ModelConfig balance_config() { return config_with_experts(3, kNumExperts); }

LearnerOptions balance_options(double coefficient, const std::string& recompute = "none") {
  auto options = learner_options();
  options.parallel.sharding.parameter_dtype = at::kDouble;
  options.parallel.router_aux_loss_coef = coefficient;
  options.num_tokens_per_microbatch = 24;
  options.activation_checkpoint = recompute;
  return options;
}

/// Rows of odd lengths; three of them, so that two data ranks need one that counts for nothing.
std::vector<LanguageModelBatch> balance_rows() {
  return packed_rows(3, [](int r) { return std::vector<int64_t>{5 + 4 * r}; });
}

/// Keeps every layer's logits of a row.
class KeepLogits : public Exchange {
 public:
  Tensor experts(int64_t, const Tensor& x_TD, const blocks::Routing& routing, const HeldExperts& held) const override {
    logits.push_back(routing.logits_TE);
    return held(x_TD, routing);
  }
  mutable std::vector<Tensor> logits;
};

/// The definition, written out: the layers' logits one behind the other, the chosen ones as one-hot rows.
Tensor balance_of(const std::vector<Tensor>& layers) {
  const Tensor probabilities = at::softmax(at::cat(layers), 1);
  const Tensor chosen = std::get<1>(probabilities.topk(kNumChoices, 1));
  const Tensor tokens_per_expert = at::one_hot(chosen, kNumExperts).to(at::kDouble).mean(0);  // [K, E]
  return (tokens_per_expert * probabilities.mean(0).unsqueeze(0)).sum() * kNumExperts;
}

struct BalancedStep : Step {
  double balance = 0;
};

BalancedStep take_step(Learner& learner, int data_rank, int num_data_ranks) {
  const auto metrics = learner.train_language_model(share_of(balance_rows(), data_rank, num_data_ranks));
  return {step_of(learner, metrics), metrics.at("moe/balance_loss")};
}

}  // namespace

TEST_CASE("the balancing loss and its gradient are those of its definition") {
  const auto config = balance_config();
  const auto weights = learner_weights(config);
  BalancedStep got;
  TensorMap without;
  double plain_loss = 0;
  with_one_rank(config, balance_options(kCoefficient), weights,
                [&](Learner& learner) { got = take_step(learner, 0, 1); });
  with_one_rank(config, balance_options(0), weights, [&](Learner& learner) {
    plain_loss = learner.train_language_model(balance_rows()).at("loss/mean");
    without = learner.model().gather_gradients();
  });
  Decoder decoder(config);
  TensorMap leaves;
  for (const auto& [name, weight] : weights) leaves[name] = weight.to(at::kDouble).set_requires_grad(true);
  decoder.bind_all(leaves);
  Tensor balance = at::zeros({}, at::kDouble);
  double num_tokens = 0;
  for (const auto& row : balance_rows()) num_tokens += row.layout.num_tokens;
  for (const auto& row : balance_rows()) {
    const auto keep = std::make_shared<KeepLogits>();
    decoder.set_exchange(keep);
    decoder.forward(at::tensor(row.tokens, at::kLong), row.layout);
    balance = balance + balance_of(keep->logits) * (row.layout.num_tokens / num_tokens);
  }
  balance.backward();
  CHECK(got.balance == doctest::Approx(balance.item<double>()).epsilon(1e-9));
  CHECK(got.loss == doctest::Approx(plain_loss + kCoefficient * balance.item<double>()).epsilon(1e-6));
  TensorMap expected, difference;
  for (const auto& [name, leaf] : leaves) {
    expected[name] = leaf.grad().defined() ? leaf.grad() * kCoefficient : at::zeros_like(leaf).detach();
    difference[name] = (got.gradients.at(name) - without.at(name)).to(at::kDouble);
  }
  CHECK(expected.at("model.layers.1.mlp.gate.weight").abs().max().item<double>() > 1e-3);
  CHECK(relative_difference(difference, expected) < 1e-4);  // of gradients that are kept in fp32
}

TEST_CASE("B098 the balancing loss is the same over every layout, recomputed or not") {
  const auto config = balance_config();
  const auto weights = learner_weights(config);
  BalancedStep expected;
  with_one_rank(config, balance_options(kCoefficient), weights,
                [&](Learner& learner) { expected = take_step(learner, 0, 1); });
  const MeshDegrees layouts[] = {{},
                                 {.shard = 2},
                                 {.shard = 2, .expert = 2},
                                 {.context = 2, .expert = 2},
                                 {.tensor = 2, .expert = 2},
                                 {.replicate = 2, .context = 2}};
  for (const auto& degrees : layouts) {
    for (const std::string recompute : {"none", "full"}) {
      const auto what = concat(describe(degrees), ", recompute ", recompute);
      CHECK_NOTHROW(with_mesh(degrees, config, balance_options(kCoefficient, recompute), weights,
                              [&](Learner& learner, const RankGroups& groups) {
                                const auto got = take_step(learner, groups.data_rank(), groups.num_data_ranks());
                                const auto near = [](double a, double b) { return std::abs(a - b) < 1e-6; };
                                require(near(got.loss, expected.loss), what, ": loss ", got.loss);
                                require(near(got.norm, expected.norm), what, ": norm ", got.norm);
                                require(near(got.balance, expected.balance), what, ": balance ", got.balance);
                                const auto difference = relative_difference(got.gradients, expected.gradients);
                                require(difference < 1e-6, what, ": gradients differ by ", difference);
                              }));
    }
  }
}

TEST_CASE("B098 a router that is even has 1, one that sends all to an expert of probability 0.7 has 2.8") {
  auto config = balance_config();
  config.moe.num_experts_per_token = 1;
  auto ranks = make_thread_groups({}, std::chrono::seconds(5));
  const auto loss_of = [&](const Tensor& probabilities_TE, const Tensor& experts_T1) {
    RouterBalance balance(config, ranks[0]);
    balance.start();
    balance.begin_row(1, Tensor());
    const Tensor logits = at::log(probabilities_TE).set_requires_grad(true);
    const auto routing = balance.attach({experts_T1, at::softmax(logits, 1).gather(1, experts_T1), logits});
    balance.end_row();
    routing.weights_TK.sum().backward();
    return balance.loss();
  };
  const Tensor even = at::full({4, 4}, 0.25, at::kDouble), each = at::arange(4, at::kLong).unsqueeze(1);
  CHECK(loss_of(even, each) == doctest::Approx(1));
  const Tensor one_sided = at::tensor({0.7, 0.1, 0.1, 0.1}, at::kDouble).unsqueeze(0).repeat({4, 1});
  CHECK(loss_of(one_sided, at::zeros({4, 1}, at::kLong)) == doctest::Approx(2.8));
}

TEST_CASE("a balancing loss that cannot be is refused by reason") {
  const auto refuse = [](const ModelConfig& config, const MeshDegrees& degrees, double coefficient, const char* why) {
    CHECK_THROWS_WITH_AS(check_parallel(config, degrees, balance_options(coefficient).parallel), doctest::Contains(why),
                         UsageError);
  };
  refuse(learner_config(), {}, 0.1, "has no experts");
  refuse(balance_config(), {}, -0.1, "must not be negative");
  refuse(balance_config(), {.pipeline = 2}, 0.1, "pipeline_parallel_degree = 2 takes apart");
  auto config = balance_config();
  config.moe.score = RouterScore::kSigmoid;
  refuse(config, {}, 0.1, "choose by softmax");
}

}  // namespace troupe
