// The gated delta rule (Yang et al. 2024, "Gated Delta Networks"): a head keeps a matrix S of key by value size,
//   S <- exp(g) S;  S <- S + k (beta (v - S^T k))^T;  o = S^T q,
// computed in chunks of tokens by products (Yang et al. 2024, "Parallelizing Linear Transformers with the Delta Rule").
// The generation engine runs the recurrence itself.
#pragma once

#include "models/layer_config.h"
#include "models/layout.h"
#include "models/torch.h"

namespace troupe::blocks {

/// in_projections: qkvz and ba, or qkv, z, b and a (DeltaConfig::joined_projections).
struct DeltaWeights {
  std::vector<Tensor> in_projections;
  Tensor convolution;  // [C, 1, kernel], over queries, keys and values
  Tensor dt_bias_H, a_log_H, norm_d;
};

/// x_TD (already normalised) -> [T, value heads * value size], normalised and gated; before the output projection. A
/// segment with a parent goes on from its parent's end. The rule itself in fp32 (float64 for float64).
Tensor delta_net(const Tensor& x_TD, const DeltaWeights& weights, const DeltaConfig& config, double norm_eps,
                 const PackedLayout& layout);

}  // namespace troupe::blocks
