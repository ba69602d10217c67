// Causal attention over a packed row whose segments may share a parent (models/layout.h), forward and backward, without
// ever holding a T x T matrix on the CPU kernels. Grouped query heads: query head h reads key/value head h / (H / K).
//
// Shape legend: T tokens, H query heads, K key/value heads, d head size, E = (H + 2 K) d.
#pragma once

#include "models/layout.h"
#include "models/torch.h"

namespace troupe::kernels {

struct AttentionShape {
  int64_t num_heads = 0, num_key_value_heads = 0, head_dim = 0;
  double scale = 1;
  int64_t window = 0;  // a token sees this many tokens, itself the last of them; 0: all before it
  int64_t chunk = 0;   // and only those of its own chunk of this many positions; 0: all
};

struct AttentionResult {
  Tensor output;       // [T, H d]
  Tensor log_sum_exp;  // [H, T] fp32 (float64 for float64), of the scaled scores
};

/// qkv_TE: per token the query heads, then the key heads, then the value heads, q and k already rotated. Softmax in
/// fp32.
AttentionResult attention_forward(const Tensor& qkv_TE, const PackedLayout& layout, const AttentionShape& shape);

/// Gradient of qkv_TE, in its layout and dtype.
Tensor attention_backward(const Tensor& d_output, const Tensor& qkv_TE, const AttentionResult& result,
                          const PackedLayout& layout, const AttentionShape& shape);

}  // namespace troupe::kernels
