// Attention over a row whose tokens are spread over context ranks (Liu et al. 2023, "Ring attention with blockwise
// transformers"): keys and values travel once around the ring, no rank ever holds all of them.
//
//   step s: rank r attends to the keys of rank r - s, while they are already on their way to rank r + 1
//   parts are joined by their log-sum-exp; in backward the gradients of keys and values travel with them, home at last
//
// Blocks that no token sees (later chunks, other documents) are skipped.
#pragma once

#include "models/kernels/attention.h"
#include "parallel/collectives.h"
#include "parallel/context_tokens.h"

namespace troupe {

/// qkv_TE of this rank's tokens; `layout` of the whole padded row. As kernels::attention_forward otherwise.
kernels::AttentionResult ring_attention_forward(const Tensor& qkv_TE, const PackedLayout& layout,
                                                const kernels::AttentionShape& shape, const ContextTokens& tokens,
                                                Collectives& context);
Tensor ring_attention_backward(const Tensor& d_output, const Tensor& qkv_TE, const kernels::AttentionResult& result,
                               const PackedLayout& layout, const kernels::AttentionShape& shape,
                               const ContextTokens& tokens, Collectives& context);

}  // namespace troupe
