// Mixtral (Jiang et al. 2024): eight experts, two a token.
#include "base/error.h"
#include "models/families/family.h"

namespace troupe {
namespace {

void read(const ConfigFields& fields, ModelConfig& config) {
  auto& moe = config.moe;
  moe.num_experts = fields.integer("num_local_experts", 8, 1, 1 << 16);
  moe.num_experts_per_token = fields.integer("num_experts_per_tok", 2, 1, moe.num_experts);
  moe.intermediate_size = config.intermediate_size;
  moe.normalise = true;
  auto& names = config.names;
  names.experts = "block_sparse_moe";
  names.expert_gate = "w1";
  names.expert_up = "w3";
  names.expert_down = "w2";
  const auto window = fields.integer("sliding_window", 0, 0);
  config.layers.assign(static_cast<size_t>(config.num_hidden_layers), {.window = window, .has_experts = true});
}

}  // namespace

const Family& mixtral_family() {
  static const Family family = {
      .name = "mixtral",
      .model_types = {"mixtral"},
      .class_prefix = "Mixtral",
      .defaults = {{"max_position_embeddings", 131072}, {"num_key_value_heads", 8}, {"rms_norm_eps", 1e-5}},
      .rope_theta = 1000000,
      .read = read};
  return family;
}

}  // namespace troupe
