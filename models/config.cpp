// Reading and writing config.json. Rope lives in config_rope.cpp, the list of parameters in parameter_specs.cpp.
#include "models/config.h"

#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "models/config_fields.h"
#include "models/families/family.h"

namespace troupe {
namespace {

using nlohmann::json;

/// Keys that change the mathematics, and the value (or null) at which they do nothing; refused where the family has not
/// read them.
void refuse_unsupported_keys(const ConfigFields& fields) {
  static const std::pair<const char*, json> neutral_values[] = {
      {"logits_scaling", 1.0},
      {"logit_scale", 1.0},
      {"residual_multiplier", 1.0},
      {"embedding_multiplier", 1.0},
      {"scale_emb", 1.0},
      {"mup_width_multiplier", 1.0},
      {"final_logit_softcapping", nullptr},
      {"attn_logit_softcapping", nullptr},
      {"attention_multiplier", nullptr},
      {"query_pre_attn_scalar", nullptr},
      {"attention_chunk_size", nullptr},
      {"no_rope_layers", nullptr},
      {"clip_qkv", nullptr},
      {"partial_rotary_factor", 1.0},
      {"rotary_pct", 1.0},
      {"use_qk_norm", false},
      {"use_bidirectional_attention", false},
      {"is_causal", true},
      {"alibi", false},
      {"num_experts", 0},
      {"num_local_experts", 0},
      {"n_routed_experts", 0},
      {"is_encoder_decoder", false},
      {"add_cross_attention", false},
      {"cross_attention_layers", nullptr},
      {"use_mrope", false},
      {"router_jitter_noise", 0.0},
      {"n_shared_experts", 0},
      {"q_lora_rank", nullptr},
      {"kv_lora_rank", nullptr},
      {"linear_num_value_heads", nullptr},
      {"rope_local_base_freq", nullptr},
      {"swiglu_limit", nullptr},
      {"attn_temperature_tuning", false},
  };
  for (const auto& [key, neutral] : neutral_values) {
    if (fields.was_asked(key)) continue;  // the family knows it
    const auto* value = fields.find(key);
    if (value == nullptr || *value == neutral) continue;
    if (value->is_array() && value->empty()) continue;
    fail("config.json: ", key, " = ", value->dump(), " changes the mathematics and is not supported for ",
         fields.model_type());
  }
  if (fields.boolean("output_router_logits", false) && fields.number("router_aux_loss_coef", 1.0) != 0) {
    log::warning(
        "config.json: output_router_logits is true, but the experts' balancing loss (router_aux_loss_coef) is ",
        "no part of the loss here");
  }
  if (const auto dropout = fields.number("attention_dropout", 0.0); dropout != 0) {
    log::warning("config.json: attention_dropout = ", dropout, " is not applied");
  }
}

int64_t read_num_labels(const ConfigFields& fields, const Family& family) {
  const auto* architectures = fields.find("architectures");
  if (architectures == nullptr) return 0;
  require(architectures->is_array() && !architectures->empty() && architectures->front().is_string(),
          "config.json: architectures must be a list of names");
  const auto name = architectures->front().get<std::string>();
  if (name.ends_with("ForCausalLM") || name.ends_with("Model") || name.ends_with("ForConditionalGeneration")) return 0;
  require(name.ends_with("ForSequenceClassification"), "config.json: architectures = \"", name,
          "\" is not supported; supported are ", family.class_prefix, "ForCausalLM and ", family.class_prefix,
          "ForSequenceClassification");
  if (const auto* labels = fields.find("id2label"); labels != nullptr && labels->is_object()) {
    return static_cast<int64_t>(labels->size());
  }
  return fields.integer("num_labels", 2, /*smallest=*/1, /*largest=*/1 << 20);
}

std::vector<int64_t> read_token_ids(const ConfigFields& fields, const char* key) {
  const auto* value = fields.find(key);
  if (value == nullptr) return {};
  std::vector<int64_t> ids;
  for (const auto& id : value->is_array() ? *value : json::array({*value})) {
    require(id.is_number_integer(), "config.json: ", key, " must be a token id or a list of them, not ", value->dump());
    if (id.get<int64_t>() >= 0) ids.push_back(id.get<int64_t>());
  }
  return ids;
}

/// Only formats that are dequantised while reading may be declared.
void check_quantisation(const ConfigFields& fields) {
  const auto* quantisation = fields.find("quantization_config");
  if (quantisation == nullptr) return;
  require(quantisation->is_object(), "config.json: quantization_config must be an object");
  const auto method = quantisation->value("quant_method", json());
  require(method == "fp8" || method == "mxfp4", "config.json: quantization_config.quant_method = ", method.dump(),
          " is not supported; supported are \"fp8\" and \"mxfp4\"");
}

}  // namespace

const std::vector<std::string>& known_model_types() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> result;
    for (const auto* family : families()) result.push_back(family->name);
    return result;
  }();
  return names;
}

namespace {

/// Sizes and heads, which every family has.
void read_sizes(const ConfigFields& fields, ModelConfig& config) {
  config.vocab_size = fields.integer("vocab_size", std::nullopt, 1, 1 << 28);
  config.hidden_size = fields.integer("hidden_size", std::nullopt, 1, 1 << 24);
  config.intermediate_size = fields.integer("intermediate_size", std::nullopt, 1, 1 << 26);
  config.num_hidden_layers = fields.integer("num_hidden_layers", std::nullopt, 1, 1 << 12);
  config.num_attention_heads = fields.integer("num_attention_heads", std::nullopt, 1, 1 << 14);
  config.num_key_value_heads = fields.integer("num_key_value_heads", config.num_attention_heads, 1, 1 << 14);
  require(config.num_attention_heads % config.num_key_value_heads == 0,
          "config.json: num_attention_heads = ", config.num_attention_heads,
          " is not a multiple of num_key_value_heads = ", config.num_key_value_heads);
  if (fields.find("head_dim") == nullptr) {
    require(config.hidden_size % config.num_attention_heads == 0,
            "config.json: head_dim is missing, and hidden_size = ", config.hidden_size,
            " is not a multiple of num_attention_heads = ", config.num_attention_heads);
  }
  config.head_dim = fields.integer("head_dim", config.hidden_size / config.num_attention_heads, 1, 1 << 14);
  config.max_position_embeddings = fields.integer("max_position_embeddings", std::nullopt, 1, int64_t{1} << 40);
  config.rms_norm_eps = fields.number("rms_norm_eps", 1e-6);
  require(config.rms_norm_eps > 0, "config.json: rms_norm_eps must be above 0");
  config.initializer_range = fields.number("initializer_range", 0.02);
  config.tie_word_embeddings = fields.boolean("tie_word_embeddings", false);
}

void read_ropes(const ConfigFields& fields, const Family& family, double share, ModelConfig& config) {
  require(config.rotated_dim() % 2 == 0 && config.rotated_dim() > 0, "config.json: rope turns ", config.rotated_dim(),
          " of head_dim = ", config.head_dim, " dimensions, which is not a number of pairs");
  RopeReading reading{
      config.max_position_embeddings, config.rotated_dim(), family.rope_theta, family.rope_scaling, share, "",
      family.local_theta_key};
  if (!family.local_theta_key.empty()) reading.layer_type = "full_attention";
  config.rope = parse_rope(fields, reading);
  if (family.local_theta_key.empty()) return;
  reading.layer_type = "sliding_attention";
  if (family.local_theta > 0) reading.theta = family.local_theta;
  config.local_rope = parse_rope(fields, reading);
}

}  // namespace

ModelConfig parse_model_config(const json& document) {
  require(document.is_object(), "config.json: not a JSON object");
  if (const auto nested = document.find("text_config"); nested != document.end() && nested->is_object()) {
    auto text = *nested;
    // transformers lets the outer flags stand for the text model where that one does not speak.
    for (const char* key : {"tie_word_embeddings", "bos_token_id", "eos_token_id", "quantization_config"}) {
      if (!text.contains(key) && document.contains(key)) text[key] = document[key];
    }
    if (!text.contains("model_type") && document.contains("model_type")) text["model_type"] = document["model_type"];
    return parse_model_config(text);
  }
  const auto& family = find_family(ConfigFields(document).model_type());
  auto filled = document;
  for (const auto& [key, value] : family.defaults.items()) {
    if (!filled.contains(key)) filled[key] = value;
  }
  const ConfigFields fields(filled);
  ModelConfig config;
  config.model_type = family.model_types.front();
  config.source = document;
  read_sizes(fields, config);
  double share = 1;
  if (family.rotary_share > 0) {
    share = parse_rotary_share(fields, family.rotary_share);
    config.rotary_dim = static_cast<int64_t>(static_cast<double>(config.head_dim) * share);
  }
  family.read(fields, config);
  config.activation = fields.was_asked("hidden_activation") ? config.activation : read_activation(fields, "hidden_act");
  read_ropes(fields, family, share, config);
  refuse_unsupported_keys(fields);
  check_quantisation(fields);
  config.num_labels = read_num_labels(fields, family);
  if (config.num_labels > 0) config.tie_word_embeddings = false;  // there is no head over the vocabulary to tie
  const auto bos = read_token_ids(fields, "bos_token_id");
  config.bos_token_id = bos.empty() ? -1 : bos.front();
  config.eos_token_ids = read_token_ids(fields, "eos_token_id");
  return config;
}

json write_model_config(const ModelConfig& config, const std::string& dtype) {
  const auto& family = find_family(config.model_type);
  auto result = config.source.is_object() ? config.source : json::object();
  result.erase("quantization_config");  // what is written is dequantised
  result["model_type"] = config.model_type;
  result["architectures"] =
      json::array({family.class_prefix + (config.num_labels > 0 ? "ForSequenceClassification" : "ForCausalLM")});
  result["vocab_size"] = config.vocab_size;
  result["hidden_size"] = config.hidden_size;
  result["intermediate_size"] = config.intermediate_size;
  result["num_hidden_layers"] = config.num_hidden_layers;
  result["num_attention_heads"] = config.num_attention_heads;
  result["num_key_value_heads"] = config.num_key_value_heads;
  result["head_dim"] = config.head_dim;
  if (!result.contains("hidden_act") && config.activation == Activation::kSilu) result["hidden_act"] = "silu";
  result["max_position_embeddings"] = config.max_position_embeddings;
  result["rms_norm_eps"] = config.rms_norm_eps;
  result["initializer_range"] = config.initializer_range;
  if (config.num_labels == 0) result["tie_word_embeddings"] = config.tie_word_embeddings;
  if (family.write != nullptr) family.write(config, result);
  if (config.num_labels > 0 && read_num_labels(ConfigFields(result), family) != config.num_labels) {
    result.erase("num_labels");
    result["id2label"] = json::object();
    result["label2id"] = json::object();
    for (int64_t label = 0; label < config.num_labels; ++label) {
      const auto name = concat("LABEL_", label);
      result["id2label"][std::to_string(label)] = name;
      result["label2id"][name] = label;
    }
  }
  result["bos_token_id"] = config.bos_token_id >= 0 ? json(config.bos_token_id) : json();
  result["eos_token_id"] = config.eos_token_ids.size() > 1 ? json(config.eos_token_ids)
                           : config.eos_token_ids.empty()  ? json()
                                                           : json(config.eos_token_ids.front());
  write_rope(config, family.local_theta_key, result);
  result["dtype"] = dtype;
  result["torch_dtype"] = dtype;
  return result;
}

}  // namespace troupe
