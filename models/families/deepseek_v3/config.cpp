// DeepSeek-V3 and R1 (DeepSeek-AI 2024), Kimi K2 (Kimi team 2025): latent attention, sigmoid routing within groups.
#include "base/error.h"
#include "models/families/family.h"

namespace troupe {
namespace {

void read(const ConfigFields& fields, ModelConfig& config) {
  auto& latent = config.latent;
  latent.query_rank = fields.is_null("q_lora_rank") ? 0 : fields.integer("q_lora_rank", 1536, 1);
  latent.key_value_rank = fields.integer("kv_lora_rank", 512, 1);
  latent.plain_dim = fields.integer("qk_nope_head_dim", 128, 0);
  latent.rotary_dim = fields.integer("qk_rope_head_dim", 64, 2);
  latent.value_dim = fields.integer("v_head_dim", 128, 1);
  require(config.num_key_value_heads == config.num_attention_heads,
          "config.json: num_key_value_heads = ", config.num_key_value_heads,
          " differs from num_attention_heads = ", config.num_attention_heads, ", which latent attention does not know");
  read_attention_bias(fields, true, config);
  config.rope_interleaved = fields.boolean("rope_interleave", true);
  config.head_dim = config.rotary_dim = latent.rotary_dim;
  read_deepseek_experts(fields, config);
  for (auto& layer : config.layers) layer.mixer = Mixer::kLatentAttention;
}

}  // namespace

const Family& deepseek_v3_family() {
  static const Family family = {.name = "deepseek_v3",
                                .model_types = {"deepseek_v3", "kimi_k2"},
                                .class_prefix = "DeepseekV3",
                                .defaults = {{"max_position_embeddings", 4096},
                                             {"head_dim", 64},
                                             {"moe_intermediate_size", 2048},
                                             {"num_experts_per_tok", 8},
                                             {"n_routed_experts", 256},
                                             {"n_group", 8},
                                             {"topk_group", 4},
                                             {"routed_scaling_factor", 2.5},
                                             {"first_k_dense_replace", 3},
                                             {"bos_token_id", 0},
                                             {"eos_token_id", 1}},
                                .read = read};
  return family;
}

}  // namespace troupe
