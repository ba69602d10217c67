// Llama 2 and 3 (Touvron et al. 2023, Grattafiori et al. 2024): the plain decoder.
#include "models/families/family.h"

namespace troupe {
namespace {

void read(const ConfigFields& fields, ModelConfig& config) {
  read_attention_bias(fields, true, config);
  config.mlp_bias = fields.boolean("mlp_bias", false);
}

void write(const ModelConfig& config, nlohmann::json& json) {
  json["attention_bias"] = config.attention_bias;
  json["mlp_bias"] = config.mlp_bias;
}

}  // namespace

const Family& llama_family() {
  static const Family family = {.name = "llama",
                                .model_types = {"llama"},
                                .class_prefix = "Llama",
                                .defaults = {{"max_position_embeddings", 2048}},
                                .read = read,
                                .write = write};
  return family;
}

}  // namespace troupe
