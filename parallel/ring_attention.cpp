#include "parallel/ring_attention.h"

#include "base/error.h"

namespace troupe {
namespace {

/// A run of query tokens that all see a run of keys: the whole of it, or (on the diagonal) each up to itself. Places
/// are those in the ranks' own tokens.
struct Block {
  int64_t query_begin = 0, num_queries = 0, key_begin = 0, num_keys = 0;
  bool is_diagonal = false;
};

struct Run {
  int64_t begin = 0, end = 0;
};
Run meet(const Run& a, const Run& b) { return {std::max(a.begin, b.begin), std::min(a.end, b.end)}; }

/// What the tokens of rank `queries` see of the tokens of rank `keys`.
std::vector<Block> visible_blocks(const PackedLayout& layout, const ContextTokens& tokens, int queries, int keys) {
  std::vector<Block> blocks;
  const int64_t size = tokens.chunk();
  const auto chunks_of = [&](int rank) {
    const auto [first, second] = tokens.chunks(rank);
    return std::array<int64_t, 2>{first, second};
  };
  const auto run_of = [&](int64_t chunk) { return Run{chunk * size, (chunk + 1) * size}; };
  const auto query_chunks = chunks_of(queries), key_chunks = chunks_of(keys);
  for (const auto& segment : layout.segments) {
    const Run own{segment.begin, segment.begin + segment.length};
    for (int64_t q = 0; q < 2; ++q) {
      const auto query = meet(own, run_of(query_chunks[static_cast<size_t>(q)]));
      if (query.begin >= query.end) continue;
      for (int64_t k = 0; k < 2; ++k) {
        const auto query_chunk = query_chunks[static_cast<size_t>(q)], key_chunk = key_chunks[static_cast<size_t>(k)];
        const auto add = [&](const Run& key, bool is_diagonal) {
          if (key.begin >= key.end) return;
          blocks.push_back({query.begin - query_chunk * size + q * size, query.end - query.begin,
                            key.begin - key_chunk * size + k * size, key.end - key.begin, is_diagonal});
        };
        // Equal chunks: keys of another chunk lie wholly before or after the queries.
        if (key_chunk <= query_chunk) add(meet(own, run_of(key_chunk)), key_chunk == query_chunk);
        if (segment.parent < 0) continue;
        const auto& parent = layout.segments[static_cast<size_t>(segment.parent)];
        add(meet({parent.begin, parent.begin + parent.length}, run_of(key_chunk)), false);
      }
    }
  }
  return blocks;
}

/// Sizes of one rank's part. G query heads share a key/value head.
struct Shapes {
  int64_t num_tokens, num_heads, num_keys, group, d;
  double scale;
  at::ScalarType wide;
};

Shapes shapes_of(const Tensor& qkv, const kernels::AttentionShape& shape) {
  return {qkv.size(0),
          shape.num_heads,
          shape.num_key_value_heads,
          shape.num_heads / shape.num_key_value_heads,
          shape.head_dim,
          shape.scale,
          qkv.scalar_type() == at::kDouble ? at::kDouble : at::kFloat};
}

/// Queries of a run of tokens [K, G L, d] from wide heads [T, H, d].
Tensor queries_of(const Tensor& heads_THd, const Shapes& s, int64_t begin, int64_t count) {
  return heads_THd.narrow(0, begin, count)
      .view({count, s.num_keys, s.group, s.d})
      .permute({1, 2, 0, 3})
      .reshape({s.num_keys, s.group * count, s.d});
}
/// The reverse: [K, G L, d] -> [L, H, d].
Tensor heads_of(const Tensor& x, const Shapes& s, int64_t count) {
  return x.view({s.num_keys, s.group, count, s.d}).permute({2, 0, 1, 3}).reshape({count, s.num_heads, s.d});
}
/// Numbers a query head and token, [H, T], of a run of tokens as [K, G L, 1].
Tensor rows_of(const Tensor& x_HT, const Shapes& s, int64_t begin, int64_t count) {
  return x_HT.narrow(1, begin, count).reshape({s.num_keys, s.group * count, 1});
}

/// Scaled scores [K, G Lq, Lk], -inf where a query does not see a key.
Tensor scores_of(const Tensor& q, const Tensor& k, const Block& block, const Shapes& s) {
  const Tensor scores = at::bmm(q, k.transpose(1, 2)).mul_(s.scale);
  if (!block.is_diagonal) return scores;
  const Tensor hidden = at::ones({block.num_queries, block.num_keys}, scores.options().dtype(at::kBool)).triu(1);
  return scores.view({s.num_keys, s.group, block.num_queries, block.num_keys})
      .masked_fill_(hidden, -std::numeric_limits<double>::infinity())
      .view({s.num_keys, s.group * block.num_queries, block.num_keys});
}

/// Keys (part 0) or values (part 1) of a run of tokens, [K, L, d], wide, from [T, 2 K d].
Tensor keys_of(const Tensor& keys_values, const Shapes& s, int64_t part, int64_t begin, int64_t count) {
  return keys_values.narrow(0, begin, count)
      .narrow(1, part * s.num_keys * s.d, s.num_keys * s.d)
      .view({count, s.num_keys, s.d})
      .transpose(0, 1)
      .to(s.wide);
}

Tensor own_keys_values(const Tensor& qkv, const Shapes& s) {
  return qkv.narrow(1, s.num_heads * s.d, 2 * s.num_keys * s.d).contiguous();
}
Tensor wide_heads(const Tensor& x, const Shapes& s) {
  return x.narrow(1, 0, s.num_heads * s.d).to(s.wide).contiguous().view({s.num_tokens, s.num_heads, s.d});
}

/// Sends to the next rank; the data is on its way when this returns.
class Ring {
 public:
  explicit Ring(Collectives& group) : group_(group) {}
  int size() const { return group_.size(); }
  int rank() const { return group_.rank(); }
  void send(const Tensor& tensor, const char* label) { group_.send(tensor, (rank() + 1) % size(), label); }
  Tensor receive_like(const Tensor& tensor, const char* label) {
    Tensor received = at::empty_like(tensor);
    group_.receive(received, (rank() + size() - 1) % size(), label);
    return received;
  }
  /// Whose keys are here at this step.
  int owner(int step) const { return (rank() + size() - step) % size(); }

 private:
  Collectives& group_;
};

constexpr const char* kKeysLabel = "ring attention keys and values";
constexpr const char* kGradientsLabel = "ring attention gradients of keys and values";

}  // namespace

kernels::AttentionResult ring_attention_forward(const Tensor& qkv, const PackedLayout& layout,
                                                const kernels::AttentionShape& shape, const ContextTokens& tokens,
                                                Collectives& context) {
  const auto s = shapes_of(qkv, shape);
  Ring ring(context);
  const Tensor q = wide_heads(qkv, s);
  const auto wide = qkv.options().dtype(s.wide);
  const Tensor output = at::zeros({s.num_tokens, s.num_heads, s.d}, wide);
  const Tensor log_sum_exp = at::full({s.num_heads, s.num_tokens}, -std::numeric_limits<double>::infinity(), wide);
  Tensor keys_values = own_keys_values(qkv, s);
  for (int step = 0; step < ring.size(); ++step) {
    const bool goes_on = step + 1 < ring.size();
    if (goes_on) ring.send(keys_values, kKeysLabel);
    for (const auto& b : visible_blocks(layout, tokens, ring.rank(), ring.owner(step))) {
      const Tensor scores = scores_of(queries_of(q, s, b.query_begin, b.num_queries),
                                      keys_of(keys_values, s, 0, b.key_begin, b.num_keys), b, s);
      const Tensor part = scores.logsumexp(2, true);
      const Tensor attended = at::bmm((scores - part).exp_(), keys_of(keys_values, s, 1, b.key_begin, b.num_keys));
      // Joined with what earlier blocks gave: both weighed by their share of the sum of exponentials.
      Tensor sum_view = log_sum_exp.narrow(1, b.query_begin, b.num_queries);
      Tensor out_view = output.narrow(0, b.query_begin, b.num_queries);
      const Tensor part_HL = part.view({s.num_heads, b.num_queries});
      const Tensor joined = at::logaddexp(sum_view, part_HL);
      const auto share = [&](const Tensor& x) { return (x - joined).exp().t().unsqueeze(2); };
      out_view.copy_(out_view * share(sum_view) + heads_of(attended, s, b.num_queries) * share(part_HL));
      sum_view.copy_(joined);
    }
    if (goes_on) keys_values = ring.receive_like(keys_values, kKeysLabel);
  }
  return {output.view({s.num_tokens, -1}).to(qkv.scalar_type()), log_sum_exp};
}

Tensor ring_attention_backward(const Tensor& d_output, const Tensor& qkv, const kernels::AttentionResult& result,
                               const PackedLayout& layout, const kernels::AttentionShape& shape,
                               const ContextTokens& tokens, Collectives& context) {
  const auto s = shapes_of(qkv, shape);
  Ring ring(context);
  const Tensor q = wide_heads(qkv, s), d_o = wide_heads(d_output, s);
  const Tensor delta_HT = (d_o * wide_heads(result.output, s)).sum(2).t().contiguous();
  const Tensor d_q = at::zeros_like(q);
  Tensor keys_values = own_keys_values(qkv, s);
  Tensor d_keys_values = at::zeros(keys_values.sizes(), q.options());
  for (int step = 0; step < ring.size(); ++step) {
    const bool goes_on = step + 1 < ring.size();
    if (goes_on) ring.send(keys_values, kKeysLabel);
    for (const auto& b : visible_blocks(layout, tokens, ring.rank(), ring.owner(step))) {
      const Tensor q_b = queries_of(q, s, b.query_begin, b.num_queries);
      const Tensor d_o_b = queries_of(d_o, s, b.query_begin, b.num_queries);
      const Tensor k = keys_of(keys_values, s, 0, b.key_begin, b.num_keys);
      const Tensor v = keys_of(keys_values, s, 1, b.key_begin, b.num_keys);
      const Tensor p = (scores_of(q_b, k, b, s) - rows_of(result.log_sum_exp, s, b.query_begin, b.num_queries)).exp_();
      const Tensor d_scores = (at::bmm(d_o_b, v.transpose(1, 2)) - rows_of(delta_HT, s, b.query_begin, b.num_queries))
                                  .mul_(p)
                                  .mul_(s.scale);
      d_q.narrow(0, b.query_begin, b.num_queries).add_(heads_of(at::bmm(d_scores, k), s, b.num_queries));
      const auto add = [&](int64_t part, const Tensor& gradient_KLd) {
        d_keys_values.narrow(0, b.key_begin, b.num_keys)
            .narrow(1, part * s.num_keys * s.d, s.num_keys * s.d)
            .add_(gradient_KLd.transpose(0, 1).reshape({b.num_keys, s.num_keys * s.d}));
      };
      add(0, at::bmm(d_scores.transpose(1, 2), q_b));
      add(1, at::bmm(p.transpose(1, 2), d_o_b));
    }
    if (ring.size() == 1) break;
    if (goes_on) keys_values = ring.receive_like(keys_values, kKeysLabel);
    ring.send(d_keys_values, kGradientsLabel);
    d_keys_values = ring.receive_like(d_keys_values, kGradientsLabel);
  }
  return at::cat({d_q.view({s.num_tokens, -1}), d_keys_values}, 1).to(qkv.scalar_type());
}

}  // namespace troupe
