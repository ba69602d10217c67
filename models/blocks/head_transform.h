// What happens to the heads of q and k between projection and attention: norms, rope, norms without weights, factors of
// the queries. Plain functions over one [T, (H + 2 K) d] buffer, used by the attention block's forward and backward.
#pragma once

#include "models/blocks/attention.h"

namespace troupe::blocks {

/// The transformed buffer: `projected_TE` itself, changed in place, without norms; with norms (q, k weights of a head
/// or of all heads) a new one.
Tensor transform_heads(const Tensor& projected_TE, at::TensorList norms, const AttentionContext& context);

/// Gradient of the projection (in place of `d_rotated_TE`) and of the norms' weights (empty without norms).
/// `projected_TE` is needed with norms only.
std::pair<Tensor, std::vector<Tensor>> transform_heads_backward(const Tensor& d_rotated_TE, const Tensor& projected_TE,
                                                                at::TensorList norms, const AttentionContext& context);

}  // namespace troupe::blocks
