// Qwen3.5 (Qwen team 2026), text models with and without experts: three layers of the gated delta rule to one of gated
// attention. Of text alone the three axes of its rope are one.
#include "models/families/family.h"

namespace troupe {
namespace {

void read(const ConfigFields& fields, ModelConfig& config) {
  read_delta_hybrid(fields, /*joined_projections=*/false, config);
}

void read_with_experts(const ConfigFields& fields, ModelConfig& config) {
  read(fields, config);
  auto& moe = config.moe;
  moe.num_experts = fields.integer("num_experts", 256, 1, 1 << 16);
  moe.num_experts_per_token = fields.integer("num_experts_per_tok", 8, 1, moe.num_experts);
  moe.intermediate_size = fields.integer("moe_intermediate_size", 512, 1);
  moe.shared_intermediate_size = fields.integer("shared_expert_intermediate_size", 512, 1);
  moe.shared_gate = moe.normalise = true;
  for (auto& layer : config.layers) layer.has_experts = true;
}

nlohmann::json defaults(int64_t num_key_value_heads) {
  return {{"max_position_embeddings", 32768}, {"num_key_value_heads", num_key_value_heads}, {"head_dim", 256}};
}

nlohmann::json defaults_with_experts() {
  auto result = defaults(2);
  result["intermediate_size"] = 1;  // no layer has a dense MLP
  return result;
}

}  // namespace

const Family& qwen3_5_family() {
  static const Family family = {.name = "qwen3_5",
                                .model_types = {"qwen3_5_text"},
                                .class_prefix = "Qwen3_5",
                                .defaults = defaults(4),
                                .rotary_share = 0.25,
                                .read = read};
  return family;
}

const Family& qwen3_5_moe_family() {
  static const Family family = {.name = "qwen3_5_moe",
                                .model_types = {"qwen3_5_moe_text"},
                                .class_prefix = "Qwen3_5Moe",
                                .defaults = defaults_with_experts(),
                                .rotary_share = 0.25,
                                .read = read_with_experts};
  return family;
}

}  // namespace troupe
