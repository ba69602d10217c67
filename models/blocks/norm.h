// RMSNorm as an autograd function, alone and joined with the residual addition before it.
//
// Shape legend: T tokens, D width.
#pragma once

#include "models/torch.h"

namespace troupe::blocks {

/// x / sqrt(mean(x^2) + eps) * weight over the last dimension (Zhang and Sennrich 2019); statistics in fp32 (float64
/// for float64). x may have any number of leading dimensions.
Tensor rms_norm(const Tensor& x, const Tensor& weight_D, double eps);

/// {gradient of x, gradient of the weight} of rms_norm, statistics computed again. Not differentiable.
std::pair<Tensor, Tensor> rms_norm_backward(const Tensor& d_y, const Tensor& x, const Tensor& weight_D, double eps);

/// {x + residual, rms_norm(x + residual)} in one pass.
std::pair<Tensor, Tensor> add_rms_norm(const Tensor& x_TD, const Tensor& residual_TD, const Tensor& weight_D,
                                       double eps);

}  // namespace troupe::blocks
