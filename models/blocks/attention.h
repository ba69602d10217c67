// Grouped-query self-attention of one layer as one autograd function: q/k/v projection, norm of q and k heads (qwen3),
// rope, and attention over the packed row. The output projection is a blocks::linear of its own.
//
// Shape legend: T tokens, D hidden size, H query heads, K key/value heads, d head size.
#pragma once

#include "models/exchange.h"
#include "models/torch.h"

namespace troupe::blocks {

/// Biases and head norms may be undefined tensors.
struct AttentionWeights {
  Tensor q_HdD, k_KdD, v_KdD;
  Tensor q_bias, k_bias, v_bias;
  Tensor q_norm_d, k_norm_d;
};

/// What every layer of one forward pass shares; kept alive by the backward graph.
struct AttentionContext {
  PackedLayout layout;
  kernels::AttentionShape shape;
  Tensor rope_table_Td;  // see rope_table
  double norm_eps = 1e-6;
  std::shared_ptr<const Exchange> exchange;
};

/// x_TD (already normalised) -> [T, H d]. Keeps x, the rotated q, k, v and the output for backward (with head norms
/// also the projection before them).
Tensor self_attention(const Tensor& x_TD, const AttentionWeights& weights,
                      std::shared_ptr<const AttentionContext> context);

}  // namespace troupe::blocks
