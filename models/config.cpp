// Reading and writing config.json. Rope lives in config_rope.cpp, the list of parameters in parameter_specs.cpp.
#include "models/config.h"

#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "models/config_fields.h"

namespace troupe {
namespace {

using nlohmann::json;

/// What a family fixes, and what transformers assumes where config.json says nothing.
struct Family {
  const char* model_type;
  const char* class_prefix;
  int64_t default_num_key_value_heads;  // 0: as many as query heads
  int64_t default_max_position_embeddings;
  int64_t default_head_dim;  // 0: hidden_size / num_attention_heads
  bool has_query_key_value_bias;
  bool reads_attention_bias;  // key attention_bias: q, k, v and o
  bool reads_mlp_bias;
  bool query_key_norm;
  bool has_sliding_window;  // llama has no such key; transformers ignores it too
  bool sliding_needs_flag;  // sliding_window counts only with use_sliding_window, and only from layer max_window_layers
                            // on
};

constexpr Family kFamilies[] = {
    {"llama", "Llama", 0, 2048, 0, false, true, true, false, false, false},
    {"mistral", "Mistral", 8, 131072, 0, false, false, false, false, true, false},
    {"qwen2", "Qwen2", 32, 32768, 0, true, false, false, false, true, true},
    {"qwen3", "Qwen3", 32, 32768, 128, false, true, false, true, true, true},
};

const Family& find_family(const std::string& model_type) {
  for (const auto& family : kFamilies) {
    if (model_type == family.model_type) return family;
  }
  std::string known;
  for (const auto& name : known_model_types()) known += (known.empty() ? "" : ", ") + name;
  fail("config.json: model_type \"", model_type, "\" is not known; known are ", known);
}

/// Keys of related families that change the mathematics, and the value (or null) at which they do nothing.
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
  };
  for (const auto& [key, neutral] : neutral_values) {
    const auto* value = fields.find(key);
    if (value == nullptr || *value == neutral) continue;
    if (value->is_array() && value->empty()) continue;
    fail("config.json: ", key, " = ", value->dump(), " changes the mathematics and is not supported for ",
         fields.model_type());
  }
  const auto activation = fields.text("hidden_act", "silu");
  require(activation == "silu" || activation == "swish", "config.json: hidden_act = \"", activation,
          "\" is not supported; supported is \"silu\"");
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
    for (const auto& family : kFamilies) result.emplace_back(family.model_type);
    return result;
  }();
  return names;
}

ModelConfig parse_model_config(const json& document) {
  require(document.is_object(), "config.json: not a JSON object");
  if (const auto nested = document.find("text_config"); nested != document.end() && nested->is_object()) {
    auto text = *nested;
    // transformers lets the outer flags stand for the text model where that one does not speak.
    for (const char* key : {"tie_word_embeddings", "bos_token_id", "eos_token_id", "quantization_config"}) {
      if (!text.contains(key) && document.contains(key)) text[key] = document[key];
    }
    if (const auto type = text.find("model_type"); type != text.end() && type->is_string()) {
      auto name = type->get<std::string>();
      if (name.ends_with("_text")) text["model_type"] = name.substr(0, name.size() - 5);
    }
    return parse_model_config(text);
  }
  const ConfigFields fields(document);
  const auto& family = find_family(fields.model_type());
  refuse_unsupported_keys(fields);
  check_quantisation(fields);

  ModelConfig config;
  config.model_type = family.model_type;
  config.source = document;
  config.vocab_size = fields.integer("vocab_size", std::nullopt, 1, 1 << 28);
  config.hidden_size = fields.integer("hidden_size", std::nullopt, 1, 1 << 24);
  config.intermediate_size = fields.integer("intermediate_size", std::nullopt, 1, 1 << 26);
  config.num_hidden_layers = fields.integer("num_hidden_layers", std::nullopt, 1, 1 << 12);
  config.num_attention_heads = fields.integer("num_attention_heads", std::nullopt, 1, 1 << 14);
  const bool heads_follow = family.default_num_key_value_heads == 0 || fields.is_null("num_key_value_heads");
  config.num_key_value_heads =
      fields.integer("num_key_value_heads",
                     heads_follow ? config.num_attention_heads : family.default_num_key_value_heads, 1, 1 << 14);
  require(config.num_attention_heads % config.num_key_value_heads == 0,
          "config.json: num_attention_heads = ", config.num_attention_heads,
          " is not a multiple of num_key_value_heads = ", config.num_key_value_heads);
  auto head_dim = family.default_head_dim;
  if (head_dim == 0 || fields.is_null("head_dim")) {
    require(fields.find("head_dim") != nullptr || config.hidden_size % config.num_attention_heads == 0,
            "config.json: head_dim is missing, and hidden_size = ", config.hidden_size,
            " is not a multiple of num_attention_heads = ", config.num_attention_heads);
    head_dim = config.hidden_size / config.num_attention_heads;
  }
  config.head_dim = fields.integer("head_dim", head_dim, 1, 1 << 14);
  require(config.head_dim % 2 == 0, "config.json: head_dim = ", config.head_dim,
          " is odd; rotary embedding needs pairs");
  config.max_position_embeddings =
      fields.integer("max_position_embeddings", family.default_max_position_embeddings, 1, int64_t{1} << 40);
  config.rms_norm_eps = fields.number("rms_norm_eps", 1e-6);
  require(config.rms_norm_eps > 0, "config.json: rms_norm_eps must be above 0");
  config.initializer_range = fields.number("initializer_range", 0.02);
  config.tie_word_embeddings = fields.boolean("tie_word_embeddings", false);
  const bool attention_bias = family.reads_attention_bias && fields.boolean("attention_bias", false);
  config.attention_bias = attention_bias || family.has_query_key_value_bias;
  config.attention_output_bias = attention_bias;
  config.mlp_bias = family.reads_mlp_bias && fields.boolean("mlp_bias", false);
  config.query_key_norm = family.query_key_norm;
  config.num_labels = read_num_labels(fields, family);
  if (config.num_labels > 0) config.tie_word_embeddings = false;  // there is no head over the vocabulary to tie
  config.rope = parse_rope(fields, config.max_position_embeddings, config.head_dim);
  if (family.has_sliding_window) {
    config.attention_windows = parse_attention_windows(fields, family.sliding_needs_flag, config.num_hidden_layers);
  }
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
  result["architectures"] = json::array(
      {std::string(family.class_prefix) + (config.num_labels > 0 ? "ForSequenceClassification" : "ForCausalLM")});
  result["vocab_size"] = config.vocab_size;
  result["hidden_size"] = config.hidden_size;
  result["intermediate_size"] = config.intermediate_size;
  result["num_hidden_layers"] = config.num_hidden_layers;
  result["num_attention_heads"] = config.num_attention_heads;
  result["num_key_value_heads"] = config.num_key_value_heads;
  result["head_dim"] = config.head_dim;
  result["hidden_act"] = "silu";
  result["max_position_embeddings"] = config.max_position_embeddings;
  result["rms_norm_eps"] = config.rms_norm_eps;
  result["initializer_range"] = config.initializer_range;
  if (config.num_labels == 0) result["tie_word_embeddings"] = config.tie_word_embeddings;
  if (family.reads_attention_bias) result["attention_bias"] = config.attention_bias;
  if (family.reads_mlp_bias) result["mlp_bias"] = config.mlp_bias;
  if (family.sliding_needs_flag && !result.contains("use_sliding_window")) result["use_sliding_window"] = false;
  if (family.has_sliding_window && !family.sliding_needs_flag) {
    result["sliding_window"] = config.attention_windows.empty() ? json() : json(config.attention_windows.front());
  }
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
  write_rope(config.rope, result);
  result["dtype"] = dtype;
  result["torch_dtype"] = dtype;
  return result;
}

}  // namespace troupe
