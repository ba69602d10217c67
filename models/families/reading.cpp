// Keys that several families have, read alike.
#include <algorithm>

#include "base/error.h"
#include "models/families/family.h"

namespace troupe {

using nlohmann::json;

std::vector<std::string> read_layer_types(const ConfigFields& fields, int64_t num_layers,
                                          const std::vector<std::string>& known) {
  const auto* types = fields.find("layer_types");
  if (types == nullptr) return {};
  require(types->is_array() && types->size() == static_cast<size_t>(num_layers),
          "config.json: layer_types must be a list of num_hidden_layers = ", num_layers, " names");
  std::vector<std::string> result;
  for (const auto& type : *types) {
    std::string supported;
    for (const auto& name : known) supported += concat(supported.empty() ? "" : " and ", '"', name, '"');
    require(type.is_string() && std::find(known.begin(), known.end(), type.get<std::string>()) != known.end(),
            "config.json: layer_types holds ", type.dump(), "; supported are ", supported);
    result.push_back(type.get<std::string>());
  }
  return result;
}

std::vector<int64_t> read_integers(const ConfigFields& fields, const char* key) {
  const auto* value = fields.find(key);
  if (value == nullptr) return {};
  require(value->is_array(), "config.json: ", key, " must be a list of integers");
  std::vector<int64_t> result;
  for (const auto& item : *value) {
    require(item.is_number_integer(), "config.json: ", key, " must be a list of integers, but holds ", item.dump());
    result.push_back(item.get<int64_t>());
  }
  return result;
}

void read_sliding_layers(const ConfigFields& fields, int64_t full_interval, ModelConfig& config) {
  const auto types = read_layer_types(fields, config.num_hidden_layers, {"full_attention", "sliding_attention"});
  config.layers.resize(static_cast<size_t>(config.num_hidden_layers));
  const auto window = fields.integer("sliding_window", 0, 0);
  for (size_t i = 0; i < config.layers.size(); ++i) {
    const bool slides =
        types.empty() ? (static_cast<int64_t>(i) + 1) % full_interval != 0 : types[i] == "sliding_attention";
    if (!slides) continue;
    require(window > 0, "config.json: layer ", i, " is a sliding_attention layer, but sliding_window is missing");
    config.layers[i].window = window;
  }
}

void read_flagged_windows(const ConfigFields& fields, ModelConfig& config) {
  const auto types = read_layer_types(fields, config.num_hidden_layers, {"full_attention", "sliding_attention"});
  config.layers.resize(static_cast<size_t>(config.num_hidden_layers));
  if (!fields.boolean("use_sliding_window", false) || fields.is_null("sliding_window")) return;
  const auto window = fields.integer("sliding_window", 4096, 1);
  const auto first = fields.integer("max_window_layers", 28, 0);
  for (size_t i = 0; i < config.layers.size(); ++i) {
    const bool slides = types.empty() ? static_cast<int64_t>(i) >= first : types[i] == "sliding_attention";
    config.layers[i].window = slides ? window : 0;
  }
}

void read_layers_without_rope(const ConfigFields& fields, ModelConfig& config) {
  const auto given = read_integers(fields, "no_rope_layers");
  const auto interval = fields.integer("no_rope_layer_interval", 4, 1);
  require(given.empty() || static_cast<int64_t>(given.size()) >= config.num_hidden_layers,
          "config.json: no_rope_layers names ", given.size(), " of ", config.num_hidden_layers, " layers");
  config.layers.resize(static_cast<size_t>(config.num_hidden_layers));
  for (size_t i = 0; i < config.layers.size(); ++i) {
    const bool has_rope = given.empty() ? (static_cast<int64_t>(i) + 1) % interval != 0 : given[i] != 0;
    config.layers[i].rope = has_rope ? LayerRope::kMain : LayerRope::kNone;
  }
}

void read_attention_bias(const ConfigFields& fields, bool of_output, ModelConfig& config) {
  config.attention_bias = fields.boolean("attention_bias", false);
  config.attention_output_bias = of_output && config.attention_bias;
}

Activation read_activation(const ConfigFields& fields, const char* key) {
  const auto name = fields.text(key, "silu");
  if (name == "silu" || name == "swish") return Activation::kSilu;
  if (name == "gelu") return Activation::kGelu;
  if (name == "gelu_pytorch_tanh" || name == "gelu_new" || name == "gelu_fast") return Activation::kGeluTanh;
  fail("config.json: ", key, " = \"", name, "\" is not supported; supported are \"silu\", \"gelu\" and ",
       "\"gelu_pytorch_tanh\"");
}

void refuse_unless(const ConfigFields& fields, const char* key, const json& supported) {
  const auto* value = fields.find(key);
  require(value == nullptr || *value == supported, "config.json: ", key, " = ", value == nullptr ? "" : value->dump(),
          " changes the mathematics and is not supported; supported is ", supported.dump());
}

namespace {

void check_choice(const ModelConfig& config) {
  const auto& moe = config.moe;
  require(moe.num_experts_per_token <= moe.num_experts,
          "config.json: num_experts_per_tok = ", moe.num_experts_per_token, " of ", moe.num_experts, " experts");
}

}  // namespace

void read_qwen_experts(const ConfigFields& fields, ModelConfig& config) {
  auto& moe = config.moe;
  moe.num_experts = fields.integer(fields.find("num_experts") == nullptr ? "num_local_experts" : "num_experts", 128, 0);
  moe.num_experts_per_token = fields.integer("num_experts_per_tok", std::nullopt, 1);
  moe.intermediate_size = fields.integer("moe_intermediate_size", std::nullopt, 1);
  moe.normalise = fields.boolean("norm_topk_prob", false);
  const auto step = fields.integer("decoder_sparse_step", 1, 1);
  const auto dense = read_integers(fields, "mlp_only_layers");
  config.layers.resize(static_cast<size_t>(config.num_hidden_layers));
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const bool is_dense = std::find(dense.begin(), dense.end(), i) != dense.end();
    config.layers[static_cast<size_t>(i)].has_experts = moe.num_experts > 0 && !is_dense && (i + 1) % step == 0;
  }
  if (moe.num_experts > 0) check_choice(config);
}

void read_deepseek_experts(const ConfigFields& fields, ModelConfig& config) {
  auto& moe = config.moe;
  moe.num_experts = fields.integer("n_routed_experts", std::nullopt, 1);
  moe.num_experts_per_token = fields.integer("num_experts_per_tok", std::nullopt, 1);
  moe.intermediate_size = fields.integer("moe_intermediate_size", std::nullopt, 1);
  moe.shared_intermediate_size = moe.intermediate_size * fields.integer("n_shared_experts", 1, 1);
  moe.score = RouterScore::kSigmoid;
  moe.choice_bias = true;
  moe.normalise = fields.boolean("norm_topk_prob", true);
  moe.scale = fields.number("routed_scaling_factor", 1.0);
  moe.num_groups = fields.integer("n_group", 1, 1);
  moe.num_kept_groups = fields.integer("topk_group", 1, 1);
  check_choice(config);
  require(moe.num_experts % moe.num_groups == 0 && moe.num_kept_groups <= moe.num_groups &&
              (moe.num_groups == 1 || moe.num_experts / moe.num_groups >= 2),
          "config.json: ", moe.num_experts, " experts in n_group = ", moe.num_groups,
          " of which topk_group = ", moe.num_kept_groups, " are kept");
  require(moe.num_kept_groups * (moe.num_experts / moe.num_groups) >= moe.num_experts_per_token,
          "config.json: the topk_group = ", moe.num_kept_groups,
          " kept groups hold fewer than num_experts_per_tok = ", moe.num_experts_per_token, " experts");
  refuse_unless(fields, "scoring_func", "sigmoid");
  refuse_unless(fields, "topk_method", "noaux_tc");
  refuse_unless(fields, "moe_layer_freq", 1);
  config.names.shared_expert = "shared_experts";
  config.num_extra_layers =
      fields.integer(fields.find("num_mtp_layers") != nullptr ? "num_mtp_layers" : "num_nextn_predict_layers", 1, 0);
  const auto first = fields.integer("first_k_dense_replace", std::nullopt, 0);
  config.layers.resize(static_cast<size_t>(config.num_hidden_layers));
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) config.layers[static_cast<size_t>(i)].has_experts = i >= first;
}

void read_delta_hybrid(const ConfigFields& fields, bool joined_projections, ModelConfig& config) {
  auto& delta = config.delta;
  delta.num_key_heads = fields.integer("linear_num_key_heads", 16, 1, 1 << 14);
  delta.num_value_heads = fields.integer("linear_num_value_heads", 32, 1, 1 << 14);
  delta.key_dim = fields.integer("linear_key_head_dim", 128, 1, 1 << 14);
  delta.value_dim = fields.integer("linear_value_head_dim", 128, 1, 1 << 14);
  delta.kernel_size = fields.integer("linear_conv_kernel_dim", 4, 1, 1 << 10);
  delta.joined_projections = joined_projections;
  require(delta.num_value_heads % delta.num_key_heads == 0,
          "config.json: linear_num_value_heads = ", delta.num_value_heads,
          " is not a multiple of linear_num_key_heads = ", delta.num_key_heads);
  config.query_key_norm = config.attention_gate = config.norm_from_one = true;
  refuse_unless(fields, "attn_output_gate", true);
  refuse_unless(fields, "output_gate_type", "swish");
  read_attention_bias(fields, true, config);
  const auto types = read_layer_types(fields, config.num_hidden_layers, {"linear_attention", "full_attention"});
  const auto interval = fields.integer("full_attention_interval", 4, 1);
  config.layers.resize(static_cast<size_t>(config.num_hidden_layers));
  for (size_t i = 0; i < config.layers.size(); ++i) {
    const bool is_linear =
        types.empty() ? (static_cast<int64_t>(i) + 1) % interval != 0 : types[i] == "linear_attention";
    config.layers[i].mixer = is_linear ? Mixer::kDeltaNet : Mixer::kAttention;
  }
}

}  // namespace troupe
