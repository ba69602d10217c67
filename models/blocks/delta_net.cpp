// The gated delta rule in chunks, composed of differentiable tensor operations. Segments of one level (roots, then
// children) are computed side by side, padded to the longest of them with tokens that change nothing.
#include "models/blocks/delta_net.h"

#include "models/blocks/linear.h"

namespace troupe::blocks {
namespace {

constexpr int64_t kLongestChunk = 64;
constexpr double kUnitEps = 1e-6;

Tensor token_indices(const std::vector<int64_t>& indices, const Tensor& like) {
  return at::tensor(indices, at::kLong).to(like.device());
}

/// For every token the token that stands `distance` before it in its document; num_tokens (a row of zeros) where there
/// is none.
std::vector<int64_t> tokens_before(const PackedLayout& layout, int64_t distance) {
  std::vector<int64_t> result(static_cast<size_t>(layout.num_tokens));
  for (const auto& segment : layout.segments) {
    for (int64_t i = 0; i < segment.length; ++i) {
      int64_t source = layout.num_tokens;
      if (i >= distance) {
        source = segment.begin + i - distance;
      } else if (segment.parent >= 0) {
        const auto& parent = layout.segments[static_cast<size_t>(segment.parent)];
        const int64_t from_end = distance - i;
        if (from_end <= parent.length) source = parent.begin + parent.length - from_end;
      }
      result[static_cast<size_t>(segment.begin + i)] = source;
    }
  }
  return result;
}

/// Causal convolution of each channel over its document, then SiLU.
Tensor convolve(const Tensor& x_TC, const Tensor& weight_C1K, const PackedLayout& layout) {
  const int64_t kernel = weight_C1K.size(2);
  const Tensor weight_KC = weight_C1K.squeeze(1).t();
  const Tensor padded = at::cat({x_TC, at::zeros({1, x_TC.size(1)}, x_TC.options())});
  Tensor sum;
  for (int64_t distance = kernel - 1; distance >= 0; --distance) {  // the oldest first, as the engine has it
    const Tensor before =
        distance == 0 ? x_TC : padded.index_select(0, token_indices(tokens_before(layout, distance), x_TC));
    const Tensor part = before * weight_KC[kernel - 1 - distance];
    sum = sum.defined() ? sum + part : part;
  }
  return at::silu(sum);
}

Tensor unit(const Tensor& x) { return x * (x.square().sum(-1, true) + kUnitEps).rsqrt(); }

struct Inputs {
  Tensor query, key, value;  // [T, H, d], q scaled
  Tensor beta, decay;        // [T, H], decay as a logarithm
};

/// Segments side by side: [S, H, chunks, L, ...].
struct Chunks {
  Tensor query, key, value, beta, decay;
};

Chunks cut(const Inputs& inputs, const Tensor& tokens, int64_t num_segments, int64_t num_chunks) {
  const auto cut_one = [&](const Tensor& x) {
    const Tensor padded = at::cat({x, at::zeros_like(x.narrow(0, 0, 1))}).index_select(0, tokens);
    auto shape = std::vector<int64_t>{num_segments, num_chunks, -1};
    for (int64_t i = 1; i < x.dim(); ++i) shape.push_back(x.size(i));
    return padded.view(shape).movedim(3, 1);
  };
  return {cut_one(inputs.query), cut_one(inputs.key), cut_one(inputs.value), cut_one(inputs.beta),
          cut_one(inputs.decay)};
}

struct RuleResult {
  Tensor output;  // [S, H, chunks, L, dv]
  Tensor state;   // [S, H, dk, dv]
};

RuleResult apply_rule(const Chunks& c, Tensor state) {
  const int64_t num_chunks = c.query.size(2), length = c.query.size(3);
  const Tensor since_start = c.decay.cumsum(3);
  const Tensor hidden = at::ones({length, length}, c.query.options().dtype(at::kBool)).triu(1);
  const Tensor between = (since_start.unsqueeze(4) - since_start.unsqueeze(3))
                             .masked_fill(hidden, -std::numeric_limits<double>::infinity())
                             .exp();  // decay from token j to token i
  const Tensor beta = c.beta.unsqueeze(4), from_start = since_start.exp().unsqueeze(4);
  const Tensor keys_t = c.key.transpose(3, 4);
  const Tensor system = at::matmul(c.key * beta, keys_t) * between;
  const auto solve = [&](const Tensor& right) {
    return at::linalg_solve_triangular(system, right, /*upper=*/false, /*left=*/true, /*unitriangular=*/true);
  };
  const Tensor new_values = solve(c.value * beta), read_keys = solve(c.key * beta * from_start);
  const Tensor inner = at::matmul(c.query, keys_t) * between;
  const Tensor query = c.query * from_start;
  const Tensor to_end = (since_start.narrow(3, length - 1, 1) - since_start).exp().unsqueeze(4);
  const Tensor keys_to_end = (c.key * to_end).transpose(3, 4);
  const Tensor whole = since_start.select(3, length - 1).exp();
  std::vector<Tensor> outputs;
  for (int64_t i = 0; i < num_chunks; ++i) {
    const auto at_chunk = [&](const Tensor& x) { return x.select(2, i); };
    const Tensor values = at_chunk(new_values) - at::matmul(at_chunk(read_keys), state);
    outputs.push_back(at::matmul(at_chunk(query), state) + at::matmul(at_chunk(inner), values));
    state = state * at_chunk(whole).unsqueeze(2).unsqueeze(3) + at::matmul(at_chunk(keys_to_end), values);
  }
  return {at::stack(outputs, 2), state};
}

/// All segments: roots from nothing, children from their parent's end -> [T, H, dv].
Tensor run_segments(const Inputs& inputs, const PackedLayout& layout) {
  const int64_t num_heads = inputs.value.size(1), key_dim = inputs.key.size(2), value_dim = inputs.value.size(2);
  std::vector<int64_t> place_of(layout.segments.size());  // among its level
  std::vector<Tensor> outputs, positions;
  Tensor root_states;
  for (const bool is_root : {true, false}) {
    std::vector<int64_t> level, parents;
    int64_t longest = 0;
    for (size_t s = 0; s < layout.segments.size(); ++s) {
      const auto& segment = layout.segments[s];
      if ((segment.parent < 0) != is_root) continue;
      place_of[s] = static_cast<int64_t>(level.size());
      level.push_back(static_cast<int64_t>(s));
      if (!is_root) parents.push_back(place_of[static_cast<size_t>(segment.parent)]);
      longest = std::max<int64_t>(longest, segment.length);
    }
    if (level.empty()) continue;
    const auto num_segments = static_cast<int64_t>(level.size());
    const int64_t chunk = std::min(kLongestChunk, longest), num_chunks = (longest + chunk - 1) / chunk;
    std::vector<int64_t> tokens(static_cast<size_t>(num_segments * num_chunks * chunk), layout.num_tokens);
    std::vector<int64_t> places, targets;
    for (int64_t i = 0; i < num_segments; ++i) {
      const auto& segment = layout.segments[static_cast<size_t>(level[static_cast<size_t>(i)])];
      for (int64_t t = 0; t < segment.length; ++t) {
        const int64_t place = i * num_chunks * chunk + t;
        tokens[static_cast<size_t>(place)] = segment.begin + t;
        places.push_back(place);
        targets.push_back(segment.begin + t);
      }
    }
    const Tensor state = is_root ? at::zeros({num_segments, num_heads, key_dim, value_dim}, inputs.value.options())
                                 : root_states.index_select(0, token_indices(parents, inputs.value));
    const auto result = apply_rule(cut(inputs, token_indices(tokens, inputs.value), num_segments, num_chunks), state);
    if (is_root) root_states = result.state;
    const Tensor rows = result.output.movedim(1, 3).reshape({-1, num_heads, value_dim});
    outputs.push_back(rows.index_select(0, token_indices(places, rows)));
    positions.push_back(token_indices(targets, rows));
  }
  if (outputs.size() == 1) return outputs[0];  // roots alone are in the row's order
  return at::cat(outputs).index_select(0, at::cat(positions).argsort());
}

struct Projections {
  Tensor convolved_TC, z, b_TH, a_TH;
};

Projections project(const Tensor& x_TD, const DeltaWeights& weights, const DeltaConfig& config) {
  const int64_t num_tokens = x_TD.size(0), group = config.num_value_heads / config.num_key_heads;
  const Tensor projected = stacked_linear(x_TD, weights.in_projections);
  if (!config.joined_projections) {
    const auto parts = projected.split_with_sizes(
        {config.convolved_size(), config.values_size(), config.num_value_heads, config.num_value_heads}, 1);
    return {parts[0], parts[1], parts[2], parts[3]};
  }
  const int64_t values = group * config.value_dim, joined = 2 * config.key_dim + 2 * values;
  const auto by_key_head = [&](int64_t begin, int64_t size) {
    return projected.narrow(1, begin, config.num_key_heads * size).view({num_tokens, config.num_key_heads, size});
  };
  const auto flat = [&](const Tensor& x) { return x.reshape({num_tokens, -1}); };
  const auto qkvz = by_key_head(0, joined).split_with_sizes({config.key_dim, config.key_dim, values, values}, 2);
  const auto ba = by_key_head(config.num_key_heads * joined, 2 * group).split_with_sizes({group, group}, 2);
  return {at::cat({flat(qkvz[0]), flat(qkvz[1]), flat(qkvz[2])}, 1), flat(qkvz[3]), flat(ba[0]), flat(ba[1])};
}

}  // namespace

Tensor delta_net(const Tensor& x_TD, const DeltaWeights& weights, const DeltaConfig& config, double norm_eps,
                 const PackedLayout& layout) {
  const auto type = x_TD.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const int64_t num_tokens = x_TD.size(0), group = config.num_value_heads / config.num_key_heads;
  const auto projections = project(x_TD, weights, config);
  const Tensor convolved = convolve(projections.convolved_TC, weights.convolution, layout).to(type);
  const auto heads = [&](int64_t begin, int64_t count, int64_t size) {
    return convolved.narrow(1, begin, count * size).view({num_tokens, count, size});
  };
  Inputs inputs;
  inputs.query =
      unit(heads(0, config.num_key_heads, config.key_dim)) * (1 / std::sqrt(static_cast<double>(config.key_dim)));
  inputs.key = unit(heads(config.keys_size(), config.num_key_heads, config.key_dim));
  inputs.value = heads(2 * config.keys_size(), config.num_value_heads, config.value_dim);
  if (group > 1) {
    inputs.query = inputs.query.repeat_interleave(group, 1);
    inputs.key = inputs.key.repeat_interleave(group, 1);
  }
  inputs.beta = at::sigmoid(projections.b_TH.to(type));
  inputs.decay = -weights.a_log_H.to(type).exp() * at::softplus(projections.a_TH.to(type) + weights.dt_bias_H.to(type));
  const Tensor output = run_segments(inputs, layout);
  const Tensor normed = output * (output.square().mean(-1, true) + norm_eps).rsqrt() * weights.norm_d.to(type);
  const Tensor gate = at::silu(projections.z.to(type)).view(normed.sizes());
  return (normed * gate).view({num_tokens, -1}).to(x_TD.scalar_type());
}

}  // namespace troupe::blocks
