#include "training/flops.h"

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

}  // namespace troupe
