#include "training/flops.h"

#include <chrono>
#include <limits>

namespace troupe {

namespace {

/// Parameters of the layers' products that one token meets.
double active_parameters(const ModelConfig& config) {
  const std::string experts = config.names.experts + ".experts.";
  const double share = config.moe.num_experts == 0 ? 1
                                                   : static_cast<double>(config.moe.num_experts_per_token) /
                                                         static_cast<double>(config.moe.num_experts);
  double count = 0;
  for (const auto& spec : parameter_specs(config)) {
    if (spec.shape.size() < 2 || spec.unit == 0 || spec.unit > config.num_hidden_layers) continue;
    double size = spec.name.find(experts) == std::string::npos ? 1 : share;
    for (const auto extent : spec.shape) size *= static_cast<double>(extent);
    count += size;
  }
  return count;
}

/// Pairs of tokens of which one sees the other.
double attended_pairs(const PackedLayout& layout, const LayerConfig& layer) {
  double count = 0;
  for (const auto& segment : layout.segments) {
    const int64_t before = segment.parent < 0 ? 0 : layout.segments[static_cast<size_t>(segment.parent)].length;
    if (layer.window == 0 && layer.chunk == 0) {
      const double length = segment.length;
      count += length * static_cast<double>(before) + length * (length + 1) / 2;
      continue;
    }
    for (int64_t position = before; position < before + segment.length; ++position) {
      const int64_t in_window = layer.window > 0 ? std::min(position + 1, layer.window) : position + 1;
      count += static_cast<double>(layer.chunk > 0 ? std::min(in_window, position % layer.chunk + 1) : in_window);
    }
  }
  return count;
}

}  // namespace

double training_flops(const ModelConfig& config, const PackedLayout& layout, int64_t num_predicted) {
  const double head_parameters = static_cast<double>(config.num_labels > 0 ? config.num_labels : config.vocab_size) *
                                 static_cast<double>(config.hidden_size);
  double flops =
      6 * active_parameters(config) * layout.num_tokens + 6 * head_parameters * static_cast<double>(num_predicted);
  std::map<LayerConfig, double> pairs;
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const auto& layer = config.layer(i);
    if (layer.mixer == Mixer::kDeltaNet) {
      flops += 18.0 *
               static_cast<double>(config.delta.num_value_heads * config.delta.key_dim * config.delta.value_dim) *
               layout.num_tokens;
      continue;
    }
    const auto [known, is_new] = pairs.try_emplace(layer, 0.0);
    if (is_new) known->second = attended_pairs(layout, layer);
    const auto sizes =
        layer.mixer == Mixer::kAttention ? 2 * config.head_dim : config.latent.query_dim() + config.latent.value_dim;
    flops += 6.0 * static_cast<double>(config.num_attention_heads * sizes) * known->second;
  }
  return flops;
}

double measure_flops(at::ScalarType dtype, at::Device device) {
  const at::NoGradGuard no_grad;
  constexpr int64_t kSize = 1024;
  const auto options = at::TensorOptions(device).dtype(dtype);
  const auto left = at::ones({2 * kSize, kSize}, options), right = at::ones({kSize, kSize}, options);
  double best_s = std::numeric_limits<double>::infinity();
  for (int repeat = 0; repeat < 4; ++repeat) {  // the first one also prepares
    const auto begin = std::chrono::steady_clock::now();
    at::linear(left, right).sum().item<double>();  // waits for the device
    best_s = std::min(best_s, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return 4.0 * kSize * kSize * kSize / best_s;
}

}  // namespace troupe
