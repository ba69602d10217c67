// The engine's routing against the trainer's, for every way to score.
#include "models/blocks/router.h"
#include "rollout/forward_state.h"
#include "tests/doctest.h"

namespace troupe {

TEST_CASE("engine and trainer choose the same experts with the same weights") {
  at::manual_seed(5);
  MoeConfig grouped;
  grouped.score = RouterScore::kSigmoid;
  grouped.num_groups = 4;
  grouped.num_kept_groups = 2;
  grouped.normalise = true;
  grouped.scale = 2.5;
  std::vector<MoeConfig> configs = {grouped};
  for (const auto score :
       {RouterScore::kSoftmax, RouterScore::kSoftmaxOfChosen, RouterScore::kSigmoid, RouterScore::kSigmoidInput}) {
    for (const bool normalise : {false, true})
      configs.push_back({.score = score, .normalise = normalise, .scale = 1.5});
  }
  for (auto& config : configs) {
    config.num_experts = 12;
    config.num_experts_per_token = 3;
    if (config.score == RouterScore::kSigmoidInput) config.normalise = false;  // no family divides there
    CAPTURE(static_cast<int>(config.score));
    const bool has_bias = config.score == RouterScore::kSigmoid;
    const Tensor logits = at::randn({40, 12}), bias = at::randn({12}) * 0.3;
    const auto routing =
        blocks::route(logits, {at::eye(12), Tensor(), has_bias ? bias : Tensor()}, config);  // the logits themselves
    const float* values = bias.const_data_ptr<float>();
    const std::vector<float> choice_bias(values, values + (has_bias ? 12 : 0));
    for (int64_t row = 0; row < 40; ++row) {
      int32_t experts[3];
      float weights[3];
      choose_experts(config, choice_bias, logits[row].const_data_ptr<float>(), experts, weights);
      for (int64_t k = 0; k < 3; ++k) {
        CHECK(experts[k] == routing.experts_TK[row][k].item<int64_t>());
        CHECK(weights[k] == doctest::Approx(routing.weights_TK[row][k].item<double>()).epsilon(1e-5));
      }
    }
  }
}

TEST_CASE("scores that all round to 0 weigh nothing instead of dividing by 0") {
  MoeConfig config;
  config.num_experts = 4;
  config.num_experts_per_token = 2;
  config.score = RouterScore::kSigmoid;
  config.normalise = true;
  const Tensor logits = at::full({1, 4}, -200.0f);
  int32_t experts[2];
  float weights[2];
  choose_experts(config, {}, logits.const_data_ptr<float>(), experts, weights);
  const auto routing = blocks::route(logits, {at::eye(4), Tensor(), Tensor()}, config);
  for (int64_t k = 0; k < 2; ++k) {
    CHECK(weights[k] == 0);
    CHECK(routing.weights_TK[0][k].item<float>() == 0);
  }
}

}  // namespace troupe
