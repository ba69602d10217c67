// Gemma 3 (Gemma team 2025): five local layers to a global one with a rope of their own, norms before and after,
// norms of the heads, embeddings times the root of their width, tanh GELU.
#include <cmath>

#include "base/error.h"
#include "base/log.h"
#include "models/families/family.h"

namespace troupe {
namespace {

void read(const ConfigFields& fields, ModelConfig& config) {
  read_attention_bias(fields, true, config);
  config.query_key_norm = config.norm_from_one = true;
  config.names.mixer_output_norm = "post_attention_layernorm";
  config.names.mlp_input_norm = "pre_feedforward_layernorm";
  config.names.mlp_output_norm = "post_feedforward_layernorm";
  config.activation =
      read_activation(fields, fields.find("hidden_activation") == nullptr ? "hidden_act" : "hidden_activation");
  config.embedding_scale = std::sqrt(static_cast<double>(config.hidden_size));
  const auto scalar = fields.number("query_pre_attn_scalar", 256.0);
  require(scalar > 0, "config.json: query_pre_attn_scalar must be above 0");
  config.attention_scale = 1 / std::sqrt(scalar);
  config.logit_softcap = fields.number("final_logit_softcapping", 0.0);
  require(config.logit_softcap >= 0, "config.json: final_logit_softcapping must not be below 0");
  if (fields.find("attn_logit_softcapping") != nullptr) {
    log::warning("config.json: attn_logit_softcapping is not applied, as transformers does not for this family");
  }
  const auto pattern = fields.integer("sliding_window_pattern", fields.integer("_sliding_window_pattern", 6, 1), 1);
  read_sliding_layers(fields, pattern, config);
  for (auto& layer : config.layers) layer.rope = layer.window > 0 ? LayerRope::kLocal : LayerRope::kMain;
}

void write(const ModelConfig& config, nlohmann::json& json) {
  json["attention_bias"] = config.attention_bias;
  // Not 0, by which transformers would divide.
  json["final_logit_softcapping"] = config.logit_softcap > 0 ? nlohmann::json(config.logit_softcap) : nlohmann::json();
  json["layer_types"] = nlohmann::json::array();
  for (const auto& layer : config.layers) {
    json["layer_types"].push_back(layer.window > 0 ? "sliding_attention" : "full_attention");
  }
  if (!json.contains("hidden_activation")) json["hidden_activation"] = "gelu_pytorch_tanh";
}

}  // namespace

const Family& gemma3_family() {
  static const Family family = {.name = "gemma3",
                                .model_types = {"gemma3_text"},
                                .class_prefix = "Gemma3",
                                // Published folders leave most of this out.
                                .defaults = {{"vocab_size", 262208},
                                             {"hidden_size", 2304},
                                             {"intermediate_size", 9216},
                                             {"num_hidden_layers", 26},
                                             {"num_attention_heads", 8},
                                             {"num_key_value_heads", 4},
                                             {"head_dim", 256},
                                             {"max_position_embeddings", 131072},
                                             {"hidden_act", "gelu_pytorch_tanh"},
                                             {"sliding_window", 4096},
                                             {"bos_token_id", 2},
                                             {"eos_token_id", 1},
                                             {"tie_word_embeddings", true}},
                                .rope_theta = 1000000,
                                .local_theta_key = "rope_local_base_freq",
                                .local_theta = 10000,
                                .read = read,
                                .write = write};
  return family;
}

}  // namespace troupe
