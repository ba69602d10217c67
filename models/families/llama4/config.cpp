// Llama 4 (Meta 2025), its text model: chunked attention with rope in three of four layers, full attention without
// rope and with a temperature in the fourth; one expert a token and one for all.
#include "base/error.h"
#include "models/families/family.h"

namespace troupe {
namespace {

void read_experts(const ConfigFields& fields, ModelConfig& config) {
  auto& moe = config.moe;
  moe.num_experts = fields.integer("num_local_experts", 16, 1, 1 << 16);
  moe.num_experts_per_token = fields.integer("num_experts_per_tok", 1, 1, moe.num_experts);
  moe.intermediate_size = moe.shared_intermediate_size = config.intermediate_size;
  moe.score = RouterScore::kSigmoidInput;
  moe.form = ExpertForm::kStacked;
  config.intermediate_size = fields.integer("intermediate_size_mlp", 16384, 1);
  config.names.mlp = config.names.experts = "feed_forward";
  config.names.router = "router";
  const auto step = fields.integer("interleave_moe_layer_step", 1, 1);
  const auto listed = read_integers(fields, "moe_layers");
  const bool has_list = fields.find("moe_layers") != nullptr;
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const bool is_listed = std::find(listed.begin(), listed.end(), i) != listed.end();
    config.layers[static_cast<size_t>(i)].has_experts = has_list ? is_listed : (i + 1) % step == 0;
  }
}

/// A flag that the published folders give as a number (4).
bool read_temperature_flag(const ConfigFields& fields) {
  constexpr const char* kKey = "attn_temperature_tuning";
  const auto* value = fields.find(kKey);
  return value != nullptr && value->is_number() ? fields.number(kKey, 0.0) != 0 : fields.boolean(kKey, true);
}

void read(const ConfigFields& fields, ModelConfig& config) {
  read_attention_bias(fields, true, config);
  config.rope_interleaved = true;
  config.unit_query_key = fields.boolean("use_qk_norm", true);
  if (read_temperature_flag(fields)) {
    config.temperature_scale = fields.number("attn_scale", 0.1);
    config.temperature_floor = fields.number("floor_scale", 8192.0);
    require(config.temperature_floor > 0, "config.json: floor_scale must be above 0");
  }
  read_layers_without_rope(fields, config);
  const auto types = read_layer_types(fields, config.num_hidden_layers, {"full_attention", "chunked_attention"});
  const auto chunk = fields.integer("attention_chunk_size", 0, 0);
  for (size_t i = 0; i < config.layers.size(); ++i) {
    auto& layer = config.layers[i];
    const bool is_chunked = types.empty() ? layer.rope != LayerRope::kNone : types[i] == "chunked_attention";
    if (!is_chunked) continue;
    require(chunk > 0, "config.json: layer ", i, " is a chunked_attention layer, but attention_chunk_size is missing");
    layer.chunk = chunk;
  }
  read_experts(fields, config);
}

void write(const ModelConfig& config, nlohmann::json& json) {
  json["intermediate_size_mlp"] = config.intermediate_size;
  json["intermediate_size"] = config.moe.intermediate_size;
  json["attn_temperature_tuning"] = config.temperature_scale != 0;
}

}  // namespace

const Family& llama4_family() {
  static const Family family = {.name = "llama4",
                                .model_types = {"llama4_text"},
                                .class_prefix = "Llama4",
                                .defaults = {{"max_position_embeddings", 131072},
                                             {"num_key_value_heads", 8},
                                             {"head_dim", 128},
                                             {"rms_norm_eps", 1e-5},
                                             {"attention_chunk_size", 8192},
                                             {"bos_token_id", 1},
                                             {"eos_token_id", 2}},
                                .rope_theta = 500000,
                                .read = read,
                                .write = write};
  return family;
}

}  // namespace troupe
