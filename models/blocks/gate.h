// The product of a gated MLP, act(gate) * up, in the forms that families have. Not differentiable by itself.
//
// Shape legend: T tokens, F MLP size.
#pragma once

#include "models/layer_config.h"
#include "models/torch.h"

namespace troupe::blocks {

struct GateForm {
  Activation activation = Activation::kSilu;
  bool take_turns = false;                   // columns of gate and up alternate; else the gate's come first
  double clamp_limit = 0, swish_factor = 1;  // see MoeConfig
};

/// gate_up [T, 2 F] -> [T, F].
Tensor gate_product(const Tensor& gate_up, const GateForm& form);
/// {the product, the gradient of gate_up}.
std::pair<Tensor, Tensor> gate_backward(const Tensor& gate_up, const Tensor& d_product, const GateForm& form);

}  // namespace troupe::blocks
