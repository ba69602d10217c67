// The gated MLP: down(act(gate(x)) * up(x)) (Shazeer 2020, SwiGLU and GEGLU) as one autograd function.
//
// Shape legend: T tokens, D hidden size, F MLP size.
#pragma once

#include "models/blocks/gate.h"
#include "models/torch.h"

namespace troupe::blocks {

/// Biases may be undefined tensors.
struct MlpWeights {
  Tensor gate_FD, up_FD, down_DF;
  Tensor gate_bias_F, up_bias_F, down_bias_D;
};

/// x_TD -> [T, D]. Keeps x and the two projections for backward; the product of F is computed again there.
Tensor gated_mlp(const Tensor& x_TD, const MlpWeights& weights, Activation activation = Activation::kSilu);

}  // namespace troupe::blocks
