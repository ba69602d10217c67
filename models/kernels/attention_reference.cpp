// Attention by plain tensor operations, segment by segment: any device, any dtype. The CPU kernels are tested against
// it.
#include "models/kernels/attention_reference.h"

namespace troupe::kernels {
namespace {

struct Views {
  Tensor q, k, v;  // [T, heads, d] views of one row
};

Views split_heads(const Tensor& qkv_TE, const AttentionShape& shape) {
  const int64_t num_tokens = qkv_TE.size(0), q_size = shape.num_heads * shape.head_dim;
  const int64_t kv_size = shape.num_key_value_heads * shape.head_dim;
  const auto heads = [&](int64_t offset, int64_t size) {
    return qkv_TE.narrow(1, offset, size).view({num_tokens, size / shape.head_dim, shape.head_dim});
  };
  return {heads(0, q_size), heads(q_size, kv_size), heads(q_size + kv_size, kv_size)};
}

/// The keys that a segment sees: its parent's, then its own.
Tensor visible(const Tensor& x, const PackedLayout& layout, const Segment& segment) {
  const Tensor own = x.narrow(0, segment.begin, segment.length);
  if (segment.parent < 0) return own;
  const Segment& parent = layout.segments[segment.parent];
  return at::cat({x.narrow(0, parent.begin, parent.length), own});
}

/// [L, N, d] -> [N', L, d] in the wide type, heads repeated so that N' = num_heads.
Tensor by_head(const Tensor& x, int64_t num_heads, at::ScalarType type) {
  return x.to(type).transpose(0, 1).repeat_interleave(num_heads / x.size(1), 0);
}

/// Scaled scores [H, Lq, Lk] with -inf where the query does not see the key.
Tensor masked_scores(const Tensor& q, const Tensor& k, const AttentionShape& shape) {
  const int64_t num_queries = q.size(1), num_keys = k.size(1), shared = num_keys - num_queries;
  const Tensor all = at::ones({num_queries, num_keys}, q.options().dtype(at::kBool));
  Tensor hidden = all.triu(shared + 1);
  if (shape.window > 0) hidden = hidden.logical_or(all.tril(shared - shape.window));
  if (shape.chunk > 0) {
    const Tensor chunks = at::arange(num_keys, q.options().dtype(at::kLong)).div(shape.chunk, "floor");
    hidden = hidden.logical_or(chunks.narrow(0, shared, num_queries).unsqueeze(1).ne(chunks.unsqueeze(0)));
  }
  return (at::bmm(q, k.transpose(1, 2)) * shape.scale).masked_fill(hidden, -std::numeric_limits<double>::infinity());
}

at::ScalarType wide_type(const Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

}  // namespace

AttentionResult attention_forward_reference(const Tensor& qkv_TE, const PackedLayout& layout,
                                            const AttentionShape& shape) {
  const auto type = wide_type(qkv_TE);
  const int64_t num_tokens = qkv_TE.size(0);
  const Views row = split_heads(qkv_TE, shape);
  const Tensor output = at::empty({num_tokens, shape.num_heads, shape.head_dim}, qkv_TE.options());
  const Tensor log_sum_exp = at::empty({shape.num_heads, num_tokens}, qkv_TE.options().dtype(type));
  for (const Segment& segment : layout.segments) {
    const Tensor q = by_head(row.q.narrow(0, segment.begin, segment.length), shape.num_heads, type);
    const Tensor k = by_head(visible(row.k, layout, segment), shape.num_heads, type);
    const Tensor v = by_head(visible(row.v, layout, segment), shape.num_heads, type);
    const Tensor scores = masked_scores(q, k, shape);
    const Tensor segment_log_sum_exp = scores.logsumexp(2, true);
    const Tensor attended = at::bmm((scores - segment_log_sum_exp).exp(), v);
    output.narrow(0, segment.begin, segment.length).copy_(attended.transpose(0, 1));
    log_sum_exp.narrow(1, segment.begin, segment.length).copy_(segment_log_sum_exp.squeeze(2));
  }
  return {output.view({num_tokens, -1}), log_sum_exp};
}

Tensor attention_backward_reference(const Tensor& d_output, const Tensor& qkv_TE, const AttentionResult& result,
                                    const PackedLayout& layout, const AttentionShape& shape) {
  const auto type = wide_type(qkv_TE);
  const int64_t num_tokens = qkv_TE.size(0), group = shape.num_heads / shape.num_key_value_heads;
  const Views row = split_heads(qkv_TE, shape);
  const Tensor d_wide = at::zeros({num_tokens, qkv_TE.size(1)}, qkv_TE.options().dtype(type));
  const Views gradient = split_heads(d_wide, shape);
  const Tensor d_heads = d_output.view({num_tokens, shape.num_heads, shape.head_dim}).to(type);
  const Tensor delta_TH = (d_heads * result.output.view(d_heads.sizes()).to(type)).sum(2);
  // Sums over the query heads that share a key/value head, and adds to the tokens that were read.
  const auto add_keys = [&](const Tensor& target, const Tensor& d_HLd, const Segment& segment) {
    const Tensor d_LKd = d_HLd.view({-1, group, d_HLd.size(1), shape.head_dim}).sum(1).transpose(0, 1);
    const int64_t num_shared = d_LKd.size(0) - segment.length;
    if (num_shared != 0) {
      target.narrow(0, layout.segments[segment.parent].begin, num_shared).add_(d_LKd.narrow(0, 0, num_shared));
    }
    target.narrow(0, segment.begin, segment.length).add_(d_LKd.narrow(0, num_shared, segment.length));
  };
  for (const Segment& segment : layout.segments) {
    const Tensor q = by_head(row.q.narrow(0, segment.begin, segment.length), shape.num_heads, type);
    const Tensor k = by_head(visible(row.k, layout, segment), shape.num_heads, type);
    const Tensor v = by_head(visible(row.v, layout, segment), shape.num_heads, type);
    const Tensor d_o = d_heads.narrow(0, segment.begin, segment.length).transpose(0, 1);
    const Tensor log_sum_exp = result.log_sum_exp.narrow(1, segment.begin, segment.length).unsqueeze(2);
    const Tensor delta = delta_TH.narrow(0, segment.begin, segment.length).t().unsqueeze(2);
    const Tensor probabilities = (masked_scores(q, k, shape) - log_sum_exp).exp();
    const Tensor d_scores = probabilities * (at::bmm(d_o, v.transpose(1, 2)) - delta) * shape.scale;
    gradient.q.narrow(0, segment.begin, segment.length).copy_(at::bmm(d_scores, k).transpose(0, 1));
    add_keys(gradient.k, at::bmm(d_scores.transpose(1, 2), q), segment);
    add_keys(gradient.v, at::bmm(probabilities.transpose(1, 2), d_o), segment);
  }
  return d_wide.to(qkv_TE.scalar_type());
}

}  // namespace troupe::kernels
