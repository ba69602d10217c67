// Which experts a token goes to, and with which weights.
//
// Shape legend: T tokens, D hidden size, E experts, K experts a token.
#pragma once

#include "models/layer_config.h"
#include "models/torch.h"

namespace troupe::blocks {

struct RouterWeights {
  Tensor weight_ED;
  Tensor bias_E;         // may be undefined
  Tensor choice_bias_E;  // may be undefined; chooses and does not weigh (Wang et al. 2024, "Auxiliary-loss-free")
};

struct Routing {
  Tensor experts_TK;            // int64
  Tensor weights_TK;            // fp32 (float64 for float64), differentiable in x and the router's weight and bias
  Tensor logits_TE = Tensor();  // what they were chosen by, before scores and biases that only choose; may be undefined
};

/// Scores in fp32 whatever x's dtype. Of equal scores any may be taken.
Routing route(const Tensor& x_TD, const RouterWeights& weights, const MoeConfig& config);

}  // namespace troupe::blocks
