// Head norms and rope over the joint q/k/v buffer.
#include "models/blocks/head_transform.h"

#include "models/blocks/norm.h"
#include "models/blocks/rope.h"

namespace troupe::blocks {
namespace {

/// View [T, heads, d] of the query (part 0) or key (part 1) columns.
Tensor heads_of(const Tensor& buffer_TE, int part, const kernels::AttentionShape& shape) {
  const int64_t count = part == 0 ? shape.num_heads : shape.num_key_value_heads;
  const int64_t offset = part == 0 ? 0 : shape.num_heads * shape.head_dim;
  return buffer_TE.narrow(1, offset, count * shape.head_dim).view({buffer_TE.size(0), count, shape.head_dim});
}

void rotate_(const Tensor& buffer_TE, const AttentionContext& context, bool inverse) {
  for (int part = 0; part < 2; ++part) {
    const Tensor heads = heads_of(buffer_TE, part, context.shape);
    heads.copy_(apply_rope(heads, context.rope_table_Td, inverse));
  }
}

}  // namespace

Tensor transform_heads(const Tensor& projected_TE, at::TensorList norms, const AttentionContext& context) {
  Tensor rotated = projected_TE;
  if (!norms.empty()) {
    rotated = projected_TE.clone();
    for (int part = 0; part < 2; ++part) {
      const Tensor heads = heads_of(rotated, part, context.shape);
      heads.copy_(rms_norm(heads, norms[part], context.norm_eps));
    }
  }
  rotate_(rotated, context, false);
  return rotated;
}

std::pair<Tensor, std::vector<Tensor>> transform_heads_backward(const Tensor& d_rotated_TE, const Tensor& projected_TE,
                                                                at::TensorList norms, const AttentionContext& context) {
  rotate_(d_rotated_TE, context, true);
  std::vector<Tensor> d_norms;
  for (size_t part = 0; part < norms.size(); ++part) {
    const Tensor d_heads = heads_of(d_rotated_TE, static_cast<int>(part), context.shape);
    const Tensor heads = heads_of(projected_TE, static_cast<int>(part), context.shape);
    const auto gradient = rms_norm_backward(d_heads, heads, norms[part], context.norm_eps);
    d_heads.copy_(gradient.first);
    d_norms.push_back(gradient.second);
  }
  return {d_rotated_TE, d_norms};
}

}  // namespace troupe::blocks
