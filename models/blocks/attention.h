// Attention of one layer over the packed row, and its common form: grouped query heads, q/k/v projections, norms of the
// heads, rope. The output projection is a blocks::linear of its own.
//
// Shape legend: T tokens, D hidden size, H query heads, K key/value heads, d head size, E = (H + 2 K) d.
#pragma once

#include "models/exchange.h"
#include "models/torch.h"

namespace troupe::blocks {

/// What every layer of one kind shares in one forward pass; kept alive by the backward graph.
struct AttentionContext {
  PackedLayout layout;
  kernels::AttentionShape shape;
  Tensor rope_table_Td;           // see rope_table; undefined: no rope
  bool rope_interleaved = false;  // see kernels::rope_
  double norm_eps = 1e-6, norm_offset = 0;
  bool norm_over_heads = false;  // norms of q and k are over all their heads, not over each
  bool unit_norm = false;        // after rope each head of q and k is divided by its root mean square
  Tensor query_factors_T;        // q is multiplied by them at last; may be undefined
  std::shared_ptr<const Exchange> exchange;
};
using AttentionContextPointer = std::shared_ptr<const AttentionContext>;

/// projected_TE: q, k and v side by side, changed in place where the context has no norms -> [T, H d]. `norms`: weights
/// for q and k, or none. `sinks_H`: logits that take part in each head's softmax and give nothing (Xiao et al. 2023);
/// may be undefined. Keeps the rotated q, k, v and the output for backward (with norms also `projected_TE`).
Tensor attend(const Tensor& projected_TE, at::TensorList norms, const Tensor& sinks_H,
              const AttentionContextPointer& context);

/// Biases, head norms and sinks may be undefined tensors.
struct AttentionWeights {
  Tensor q_HdD, k_KdD, v_KdD;
  Tensor q_bias, k_bias, v_bias;
  Tensor q_norm, k_norm;
  Tensor sinks_H;
  bool has_gate = false;  // q holds 2 d rows a head: the query's, then those of a gate on the head's output
};

/// x_TD (already normalised) -> [T, H d].
Tensor self_attention(const Tensor& x_TD, const AttentionWeights& weights, const AttentionContextPointer& context);

}  // namespace troupe::blocks
