// Qwen3-Next (Qwen team 2025): three layers of the gated delta rule to one of gated attention, many small experts.
#include "models/families/family.h"

namespace troupe {
namespace {

void read(const ConfigFields& fields, ModelConfig& config) {
  read_delta_hybrid(fields, /*joined_projections=*/true, config);
  read_qwen_experts(fields, config);
  config.moe.shared_intermediate_size = fields.integer("shared_expert_intermediate_size", 512, 1);
  config.moe.shared_gate = true;
}

}  // namespace

const Family& qwen3_next_family() {
  static const Family family = {.name = "qwen3_next",
                                .model_types = {"qwen3_next"},
                                .class_prefix = "Qwen3Next",
                                .defaults = {{"max_position_embeddings", 32768},
                                             {"num_key_value_heads", 2},
                                             {"head_dim", 256},
                                             {"num_experts", 512},
                                             {"num_experts_per_tok", 10},
                                             {"moe_intermediate_size", 512},
                                             {"norm_topk_prob", true}},
                                .rotary_share = 0.25,
                                .read = read};
  return family;
}

}  // namespace troupe
