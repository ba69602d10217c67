// Mistral (Jiang et al. 2023): a sliding window in every layer.
#include "models/families/family.h"

namespace troupe {
namespace {

void read(const ConfigFields& fields, ModelConfig& config) {
  const auto window = fields.is_null("sliding_window") ? 0 : fields.integer("sliding_window", 4096, 1);
  config.layers.assign(static_cast<size_t>(config.num_hidden_layers), {.window = window});
}

void write(const ModelConfig& config, nlohmann::json& json) {
  const auto window = config.layer(0).window;
  json["sliding_window"] = window > 0 ? nlohmann::json(window) : nlohmann::json();
}

}  // namespace

const Family& mistral_family() {
  static const Family family = {.name = "mistral",
                                .model_types = {"mistral"},
                                .class_prefix = "Mistral",
                                .defaults = {{"max_position_embeddings", 131072}, {"num_key_value_heads", 8}},
                                .read = read,
                                .write = write};
  return family;
}

}  // namespace troupe
