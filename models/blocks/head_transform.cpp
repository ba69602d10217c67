// Head norms, rope and factors over the joint q/k/v buffer.
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

/// The same columns as rows of a norm's width, copied.
Tensor norm_rows(const Tensor& buffer_TE, size_t part, int64_t width, const kernels::AttentionShape& shape) {
  return heads_of(buffer_TE, part, shape).reshape({-1, width});
}

void normalise_(const Tensor& buffer_TE, at::TensorList norms, const AttentionContext& context) {
  for (size_t part = 0; part < norms.size(); ++part) {
    const Tensor heads = heads_of(buffer_TE, part, context.shape);
    const Tensor rows = norm_rows(buffer_TE, part, norms[part].size(0), context.shape);
    heads.copy_(
        kernels::rms_norm(rows, {}, norms[part], context.norm_eps, context.norm_offset).y_RD.view(heads.sizes()));
  }
}

void rotate_(const Tensor& buffer_TE, const AttentionContext& context, bool inverse) {
  if (!context.rope_table_Td.defined()) return;
  const int64_t num_heads = context.shape.num_heads + context.shape.num_key_value_heads;
  kernels::rope_(buffer_TE, num_heads, context.shape.head_dim, context.rope_table_Td, context.rope_interleaved,
                 inverse);
}

Tensor unit_weight(const Tensor& buffer, const AttentionContext& context) {
  return at::ones({context.shape.head_dim}, buffer.options());
}

void scale_queries_(const Tensor& buffer_TE, const AttentionContext& context) {
  if (!context.query_factors_T.defined()) return;
  heads_of(buffer_TE, 0, context.shape).mul_(context.query_factors_T.view({-1, 1, 1}));
}

/// Gradients of `heads` (in place of `d_heads`) and of the weight.
Tensor norm_backward_(const Tensor& d_heads, const Tensor& rows, const Tensor& weight, double offset,
                      const AttentionContext& context) {
  const Tensor inverse_rms = kernels::rms_norm(rows, {}, weight, context.norm_eps, offset).inverse_rms_R;
  const auto [d_rows, d_weight] =
      kernels::rms_norm_backward(d_heads.reshape(rows.sizes()), rows, weight, inverse_rms, {}, offset);
  d_heads.copy_(d_rows.view(d_heads.sizes()));
  return d_weight;
}

}  // namespace

Tensor transform_heads(const Tensor& projected_TE, at::TensorList norms, const AttentionContext& context) {
  const bool has_norms = !norms.empty() || context.unit_norm;
  const Tensor buffer = has_norms ? projected_TE.clone() : projected_TE;
  normalise_(buffer, norms, context);
  rotate_(buffer, context, false);
  for (size_t part = 0; context.unit_norm && part < 2; ++part) {
    const Tensor heads = heads_of(buffer, part, context.shape);
    const Tensor rows = norm_rows(buffer, part, context.shape.head_dim, context.shape);
    heads.copy_(kernels::rms_norm(rows, {}, unit_weight(buffer, context), context.norm_eps).y_RD.view(heads.sizes()));
  }
  scale_queries_(buffer, context);
  return buffer;
}

std::pair<Tensor, std::vector<Tensor>> transform_heads_backward(const Tensor& d_rotated_TE, const Tensor& projected_TE,
                                                                at::TensorList norms, const AttentionContext& context) {
  scale_queries_(d_rotated_TE, context);
  if (context.unit_norm) {
    const Tensor before = projected_TE.clone();
    normalise_(before, norms, context);
    rotate_(before, context, false);
    for (size_t part = 0; part < 2; ++part) {
      norm_backward_(heads_of(d_rotated_TE, part, context.shape),
                     norm_rows(before, part, context.shape.head_dim, context.shape), unit_weight(before, context), 0,
                     context);
    }
  }
  rotate_(d_rotated_TE, context, true);
  std::vector<Tensor> d_norms;
  for (size_t part = 0; part < norms.size(); ++part) {
    d_norms.push_back(norm_backward_(heads_of(d_rotated_TE, part, context.shape),
                                     norm_rows(projected_TE, part, norms[part].size(0), context.shape), norms[part],
                                     context.norm_offset, context));
  }
  return {d_rotated_TE, d_norms};
}

}  // namespace troupe::blocks
