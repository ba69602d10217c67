// SmolLM3 (Hugging Face 2025): every fourth layer without rope.
#include "base/error.h"
#include "models/families/family.h"

namespace troupe {
namespace {

void read(const ConfigFields& fields, ModelConfig& config) {
  read_attention_bias(fields, true, config);
  config.mlp_bias = fields.boolean("mlp_bias", false);
  read_layers_without_rope(fields, config);
  const auto types = read_layer_types(fields, config.num_hidden_layers, {"full_attention", "sliding_attention"});
  const bool flag = fields.boolean("use_sliding_window", false);
  const auto window = fields.integer("sliding_window", 0, 0);
  for (size_t i = 0; i < config.layers.size(); ++i) {
    auto& layer = config.layers[i];
    const bool slides =
        types.empty() ? flag && window > 0 && layer.rope == LayerRope::kNone : types[i] == "sliding_attention";
    if (!slides) continue;
    require(window > 0, "config.json: layer ", i, " is a sliding_attention layer, but sliding_window is missing");
    layer.window = window;
  }
}

void write(const ModelConfig& config, nlohmann::json& json) {
  json["attention_bias"] = config.attention_bias;
  json["mlp_bias"] = config.mlp_bias;
}

}  // namespace

const Family& smollm3_family() {
  static const Family family = {
      .name = "smollm3",
      .model_types = {"smollm3"},
      .class_prefix = "SmolLM3",
      .defaults = {{"max_position_embeddings", 32768}, {"num_key_value_heads", 4}, {"tie_word_embeddings", true}},
      .rope_theta = 2000000,
      .read = read,
      .write = write};
  return family;
}

}  // namespace troupe
