// Qwen3 (Yang et al. 2025): norms of the query and key heads.
#include "models/families/family.h"

namespace troupe {
namespace {

void read(const ConfigFields& fields, ModelConfig& config) {
  config.query_key_norm = true;
  read_attention_bias(fields, true, config);
  read_flagged_windows(fields, config);
}

void write(const ModelConfig& config, nlohmann::json& json) {
  json["attention_bias"] = config.attention_bias;
  if (!json.contains("use_sliding_window")) json["use_sliding_window"] = false;
}

}  // namespace

const Family& qwen3_family() {
  static const Family family = {
      .name = "qwen3",
      .model_types = {"qwen3"},
      .class_prefix = "Qwen3",
      .defaults = {{"max_position_embeddings", 32768}, {"num_key_value_heads", 32}, {"head_dim", 128}},
      .read = read,
      .write = write};
  return family;
}

}  // namespace troupe
