// OLMo 3 (Olmo team 2025): norms after attention and MLP instead of before, norms over all query and all key heads,
// windows in three of four layers, whose rope is not scaled.
#include "models/families/family.h"

namespace troupe {
namespace {

void read(const ConfigFields& fields, ModelConfig& config) {
  read_attention_bias(fields, true, config);
  config.query_key_norm = config.norm_over_heads = true;
  config.names.mixer_input_norm = config.names.mlp_input_norm = "";
  config.names.mixer_output_norm = "post_attention_layernorm";
  config.names.mlp_output_norm = "post_feedforward_layernorm";
  read_sliding_layers(fields, 4, config);
  for (auto& layer : config.layers) layer.rope = layer.window > 0 ? LayerRope::kLocal : LayerRope::kMain;
}

void write(const ModelConfig& config, nlohmann::json& json) { json["attention_bias"] = config.attention_bias; }

}  // namespace

const Family& olmo3_family() {
  static const Family family = {
      .name = "olmo3",
      .model_types = {"olmo3"},
      .class_prefix = "Olmo3",
      .defaults = {{"max_position_embeddings", 2048}, {"rms_norm_eps", 1e-5}, {"sliding_window", 4096}},
      .rope_theta = 500000,
      .local_theta_key = "rope_theta",
      .read = read,
      .write = write};
  return family;
}

}  // namespace troupe
