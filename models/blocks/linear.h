// Linear maps as autograd functions: y = x W^T + b, several checkpoint tensors at once where they stand side by side.
//
// Shape legend: T tokens, I input size, O output size.
#pragma once

#include "models/torch.h"

namespace troupe::blocks {

/// x_TI W_OI^T (+ bias_O) -> [T, O]. `bias` may be an undefined tensor. Saves the weight variable, never a copy of it.
Tensor linear(const Tensor& x_TI, const Tensor& weight_OI, const Tensor& bias_O);

/// [sum of O, I]: the weights under each other. A view without copying where they are neighbours in one storage (the
/// flat buffer of a sharded unit), else a copy. Not differentiable: for use inside autograd functions.
Tensor stack_rows(at::TensorList weights);
/// Same for biases; undefined where none is defined. Throws Error where only some are.
Tensor stack_biases(at::TensorList biases);

/// weight_OI^T g: the gradient of the weight, in the weight's dtype.
Tensor weight_gradient(const Tensor& gradient_TO, const Tensor& x_TI);
/// Cuts the gradient of stacked rows into views, one per weight.
std::vector<Tensor> split_rows(const Tensor& gradient, at::TensorList weights);

}  // namespace troupe::blocks
