// Head norms and rope over the joint q/k/v buffer.
#include "models/blocks/head_transform.h"

#include "models/kernels/training_ops.h"

namespace troupe::blocks {
namespace {

/// View [T, heads, d] of the query (part 0) or key (part 1) columns.
Tensor heads_of(const Tensor& buffer_TE, size_t part, const kernels::AttentionShape& shape) {
  const int64_t count = part == 0 ? shape.num_heads : shape.num_key_value_heads;
  const int64_t offset = part == 0 ? 0 : shape.num_heads * shape.head_dim;
  return buffer_TE.narrow(1, offset, count * shape.head_dim).view({buffer_TE.size(0), count, shape.head_dim});
}

void rotate_(const Tensor& buffer_TE, const AttentionContext& context, bool inverse) {
  const int64_t num_heads = context.shape.num_heads + context.shape.num_key_value_heads;
  kernels::rope_(buffer_TE, num_heads, context.rope_table_Td, inverse);
}

}  // namespace

Tensor transform_heads(const Tensor& projected_TE, at::TensorList norms, const AttentionContext& context) {
  const Tensor rotated = norms.empty() ? projected_TE : projected_TE.clone();
  for (size_t part = 0; part < norms.size(); ++part) {
    const Tensor heads = heads_of(rotated, part, context.shape);
    const Tensor rows = heads.reshape({-1, context.shape.head_dim});
    heads.copy_(kernels::rms_norm(rows, {}, norms[part], context.norm_eps).y_RD.view(heads.sizes()));
  }
  rotate_(rotated, context, false);
  return rotated;
}

std::pair<Tensor, std::vector<Tensor>> transform_heads_backward(const Tensor& d_rotated_TE, const Tensor& projected_TE,
                                                                at::TensorList norms, const AttentionContext& context) {
  rotate_(d_rotated_TE, context, true);
  std::vector<Tensor> d_norms;
  for (size_t part = 0; part < norms.size(); ++part) {
    const Tensor d_heads = heads_of(d_rotated_TE, part, context.shape);
    const Tensor rows = heads_of(projected_TE, part, context.shape).reshape({-1, context.shape.head_dim});
    const Tensor inverse_rms = kernels::rms_norm(rows, {}, norms[part], context.norm_eps).inverse_rms_R;
    const auto [d_rows, d_norm] =
        kernels::rms_norm_backward(d_heads.reshape(rows.sizes()), rows, norms[part], inverse_rms, {});
    d_heads.copy_(d_rows.view(d_heads.sizes()));
    d_norms.push_back(d_norm);
  }
  return {d_rotated_TE, d_norms};
}

}  // namespace troupe::blocks
