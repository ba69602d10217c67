// The critic's loss per token (Schulman et al. 2017, with the value clipping of their implementation).
#pragma once

#include "models/torch.h"

namespace troupe {

/// 0.5 * max((v - R)^2, (v_old + clamp(v - v_old, +-clip) - R)^2) [N]; without `clip` 0.5 * (v - R)^2. Only values_N
/// carries a gradient.
Tensor value_loss(const Tensor& values_N, const Tensor& old_values_N, const Tensor& returns_N,
                  std::optional<double> clip);

}  // namespace troupe
