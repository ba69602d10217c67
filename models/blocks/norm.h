// RMSNorm as an autograd function, alone and joined with the residual addition before it.
//
// Shape legend: T tokens, D width.
#pragma once

#include "models/torch.h"

namespace troupe::blocks {

/// x / sqrt(mean(x^2) + eps) * (weight + offset) (Zhang and Sennrich 2019); statistics in fp32 (float64 for float64).
/// `plainly`: rounded as by the reference's plain operations, for what makes much of a last bit.
Tensor rms_norm(const Tensor& x_TD, const Tensor& weight_D, double eps, double offset = 0, bool plainly = false);

/// {x + residual, rms_norm(x + residual)} in one pass.
std::pair<Tensor, Tensor> add_rms_norm(const Tensor& x_TD, const Tensor& residual_TD, const Tensor& weight_D,
                                       double eps, double offset = 0);

}  // namespace troupe::blocks
