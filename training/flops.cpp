#include "training/flops.h"

#include <chrono>
#include <limits>

namespace troupe {

double training_flops(const ModelConfig& config, const PackedLayout& layout, int64_t num_predicted) {
  double layer_parameters = 0;
  for (const auto& spec : parameter_specs(config)) {
    if (spec.shape.size() < 2 || spec.unit == 0 || spec.unit > config.num_hidden_layers) continue;
    layer_parameters += static_cast<double>(spec.shape[0]) * static_cast<double>(spec.shape[1]);
  }
  double num_pairs = 0;
  for (const auto& segment : layout.segments) {
    const double length = segment.length;
    const double before = segment.parent < 0 ? 0 : layout.segments[static_cast<size_t>(segment.parent)].length;
    num_pairs += length * before + length * (length + 1) / 2;
  }
  const double head_parameters = static_cast<double>(config.num_labels > 0 ? config.num_labels : config.vocab_size) *
                                 static_cast<double>(config.hidden_size);
  return 6 * layer_parameters * layout.num_tokens + 6 * head_parameters * static_cast<double>(num_predicted) +
         12.0 * static_cast<double>(config.num_hidden_layers * config.num_attention_heads * config.head_dim) *
             num_pairs;
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
