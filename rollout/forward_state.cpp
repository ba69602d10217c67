#include "rollout/forward_state.h"

#include <algorithm>

namespace troupe {
namespace {

/// The widest row of each buffer over all layers.
struct Widths {
  int64_t wide = 0, input = 0, narrow = 1, activation = 1;
};

Widths widths_of(const ModelConfig& config) {
  Widths widths;
  const int64_t heads = config.num_attention_heads, d = config.head_dim;
  widths.input = config.hidden_size;
  const auto widen = [](int64_t& width, int64_t by) { width = std::max(width, by); };
  if (config.has(Mixer::kAttention)) {
    widen(widths.input, heads * d);
    widen(widths.wide, (heads * (config.attention_gate ? 2 : 1) + 2 * config.num_key_value_heads) * d);
  }
  if (config.has(Mixer::kLatentAttention)) {
    const auto& latent = config.latent;
    const int64_t key = latent.key_value_rank + latent.rotary_dim;
    widen(widths.input, heads * latent.value_dim);
    widen(widths.wide, round_up(heads * latent.query_dim(), kPanelColumns) + round_up(key, kPanelColumns) +
                           std::max(heads * round_up(key, kPanelColumns), round_up(latent.query_rank, kPanelColumns)));
    widen(widths.narrow, std::max(latent.query_rank, heads * latent_narrow_size(latent)));
  }
  if (config.has(Mixer::kDeltaNet)) {
    const auto& delta = config.delta;
    widen(widths.input, delta.values_size());
    const int64_t projected = delta.convolved_size() + delta.values_size() + 2 * delta.num_value_heads;
    widen(widths.wide, round_up(projected, kPanelColumns) + delta.convolved_size() + 2 * delta.num_value_heads);
  }
  widen(widths.activation, config.intermediate_size);
  widen(widths.activation, config.moe.shared_intermediate_size);
  return widths;
}

}  // namespace

std::pair<int64_t, int64_t> lay_out_caches(const ModelConfig& config, int64_t num_blocks, int64_t block_tokens,
                                           int64_t num_states, std::vector<LayerCache>& caches) {
  int64_t elements = 0, floats = 0;
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    LayerCache place;
    place.offset = elements;
    place.state_offset = floats;
    switch (config.layer(i).mixer) {
      case Mixer::kAttention:
        place.num_regions = 2;
        place.num_heads = config.num_key_value_heads;
        place.head_elements = config.head_dim;
        break;
      case Mixer::kLatentAttention:  // compressed keys and values are one, followed by the rotated key
        place.num_regions = 1;
        place.num_heads = 1;
        place.head_elements = config.latent.key_value_rank + config.latent.rotary_dim;
        break;
      case Mixer::kDeltaNet: {
        const auto& delta = config.delta;
        place.state_elements =
            delta.num_value_heads * delta.key_dim * delta.value_dim + (delta.kernel_size - 1) * delta.convolved_size();
        break;
      }
    }
    place.block_elements = place.num_heads * block_tokens * place.head_elements;
    place.region_elements = num_blocks * place.block_elements;
    elements += place.num_regions * place.region_elements;
    floats += num_states * place.state_elements;
    caches.push_back(place);
  }
  return {elements, floats};
}

namespace {

struct CacheSizes {
  std::vector<LayerCache> caches;
  std::pair<int64_t, int64_t> totals;
  CacheSizes(const ModelConfig& config, const ForwardOptions& options)
      : totals(lay_out_caches(config, options.num_blocks, options.block_tokens, options.num_states, caches)) {}
};

}  // namespace

template <class T>
ForwardState<T>::ForwardState(const ModelConfig& model_config, const ForwardOptions& forward_options)
    : config(model_config),
      options(forward_options),
      team(forward_options.num_threads),
      caches(CacheSizes(model_config, forward_options).caches),
      cache(static_cast<size_t>(CacheSizes(model_config, forward_options).totals.first) * sizeof(T)),
      states(static_cast<size_t>(CacheSizes(model_config, forward_options).totals.second) * sizeof(float)),
      per_thread(static_cast<size_t>(forward_options.num_threads)) {
  const int64_t count = options.max_rows;
  const auto widths = widths_of(config);
  const auto hidden = config.hidden_size;
  residual.resize(count, hidden);
  wide.resize(count, widths.wide);
  input.resize(count, widths.input);
  narrow.resize(count, widths.narrow);
  activation.resize(count, widths.activation);
  const bool has_output_norm = !config.names.mixer_output_norm.empty() || !config.names.mlp_output_norm.empty();
  output.resize(has_output_norm ? count : 1, hidden);
  if (config.has_experts()) {
    const auto& moe = config.moe;
    const int64_t choices = moe.num_experts_per_token;
    routed.logits.resize(count, moe.num_experts + kPanelColumns);
    for (auto* each : {&routed.experts, &routed.slots, &routed.rows})
      each->resize(static_cast<size_t>(count * choices));
    routed.weights.resize(static_cast<size_t>(count * choices));
    routed.begins.resize(static_cast<size_t>(moe.num_experts + 1));
    routed.input.resize(count * choices, hidden);
    routed.activation.resize(count * choices, moe.intermediate_size);
    routed.output.resize(count * choices, hidden);
  }
  scores_stride = round_up(options.max_context_length, 16);
  for (auto& scratch : per_thread) {
    scratch.product.resize(2 * kRowChunk * kPanelColumns);
    scratch.scores.resize(4 * scores_stride);
  }
}

template <class T>
void ForwardState<T>::normalise(Walk& walk, const std::vector<float>& weight) {
  share(walk, num_rows(), 8, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      if (weight.empty()) {
        typed().convert(residual.row(r), config.hidden_size, input.row(r));
      } else {
        typed().rms_norm(residual.row(r), weight.data(), config.hidden_size, epsilon(), input.row(r));
      }
    }
  });
}

template <class T>
void ForwardState<T>::multiply(Walk& walk, const PackedMatrix<T>& matrix, const T* a, int64_t a_stride,
                               Rows<float>& out) {
  share(walk, matrix.num_panels, 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      typed().gemm_panel(a, a_stride, num_rows(), matrix.panel(p), matrix.depth, out.row(0) + p * kPanelColumns,
                         out.stride);
    }
  });
}

template <class T>
void ForwardState<T>::add_product(Walk& walk, const PackedMatrix<T>& matrix, const T* a, int64_t a_stride,
                                  const std::vector<float>& bias, const std::vector<float>& norm) {
  const int64_t hidden = config.hidden_size;
  float* product = per_thread[static_cast<size_t>(walk.thread)].product.data();
  share(walk, matrix.num_panels, 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      const int64_t column = p * kPanelColumns, columns = std::min(kPanelColumns, hidden - column);
      for (int64_t first = 0; first < num_rows(); first += kRowChunk) {
        const int64_t count = std::min(kRowChunk, num_rows() - first);
        typed().gemm_panel(a + first * a_stride, a_stride, count, matrix.panel(p), matrix.depth, product,
                           kPanelColumns);
        for (int64_t r = 0; r < count; ++r) {
          float* partial = product + r * kPanelColumns;
          if (!bias.empty()) kernels.add(bias.data() + column, columns, partial);
          if (norm.empty()) {
            kernels.add(partial, columns, residual.row(first + r) + column);
          } else {
            std::copy_n(partial, columns, output.row(first + r) + column);
          }
        }
      }
    }
  });
  if (norm.empty()) return;
  share(walk, num_rows(), 8, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      kernels.f32.rms_norm(output.row(r), norm.data(), hidden, epsilon(), output.row(r));
      kernels.add(output.row(r), hidden, residual.row(r));
    }
  });
}

template struct ForwardState<float>;
template struct ForwardState<Bf16>;

}  // namespace troupe
