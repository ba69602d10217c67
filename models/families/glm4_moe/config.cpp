// GLM-4.5 (GLM team 2025): half of each head is rotated; experts routed as in DeepSeek-V3.
#include "models/families/family.h"

namespace troupe {
namespace {

void read(const ConfigFields& fields, ModelConfig& config) {
  read_attention_bias(fields, false, config);
  config.query_key_norm = fields.boolean("use_qk_norm", false);
  read_deepseek_experts(fields, config);
}

}  // namespace

const Family& glm4_moe_family() {
  static const Family family = {.name = "glm4_moe",
                                .model_types = {"glm4_moe"},
                                .class_prefix = "Glm4Moe",
                                .defaults = {{"max_position_embeddings", 131072},
                                             {"num_key_value_heads", 8},
                                             {"rms_norm_eps", 1e-5},
                                             {"moe_intermediate_size", 1408},
                                             {"num_experts_per_tok", 8},
                                             {"n_routed_experts", 128},
                                             {"first_k_dense_replace", 1}},
                                .rotary_share = 0.5,
                                .read = read};
  return family;
}

}  // namespace troupe
