// Qwen2 and Qwen2.5 (Yang et al. 2024): biases of q, k and v; a window from some layer on where a flag says so.
#include "models/families/family.h"

namespace troupe {
namespace {

void read(const ConfigFields& fields, ModelConfig& config) {
  config.attention_bias = true;
  read_flagged_windows(fields, config);
}

void write(const ModelConfig&, nlohmann::json& json) {
  if (!json.contains("use_sliding_window")) json["use_sliding_window"] = false;
}

}  // namespace

const Family& qwen2_family() {
  static const Family family = {.name = "qwen2",
                                .model_types = {"qwen2"},
                                .class_prefix = "Qwen2",
                                .defaults = {{"max_position_embeddings", 32768}, {"num_key_value_heads", 32}},
                                .read = read,
                                .write = write};
  return family;
}

}  // namespace troupe
