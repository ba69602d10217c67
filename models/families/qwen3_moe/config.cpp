// Qwen3 with experts (Yang et al. 2025).
#include "models/families/family.h"

namespace troupe {
namespace {

void read(const ConfigFields& fields, ModelConfig& config) {
  config.query_key_norm = true;
  read_attention_bias(fields, true, config);
  read_qwen_experts(fields, config);
  if (!fields.boolean("use_sliding_window", false) || fields.is_null("sliding_window")) return;
  const auto window = fields.integer("sliding_window", 4096, 1);
  for (auto& layer : config.layers) layer.window = window;
}

}  // namespace

const Family& qwen3_moe_family() {
  static const Family family = {.name = "qwen3_moe",
                                .model_types = {"qwen3_moe"},
                                .class_prefix = "Qwen3Moe",
                                .defaults = {{"max_position_embeddings", 32768},
                                             {"num_key_value_heads", 4},
                                             {"num_experts_per_tok", 8},
                                             {"moe_intermediate_size", 768}},
                                .read = read};
  return family;
}

}  // namespace troupe
