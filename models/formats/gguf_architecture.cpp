#include "models/formats/gguf_architecture.h"

#include <map>

#include "base/error.h"

namespace troupe {
namespace {

void add_gemma3(const GgufHeader& header, nlohmann::json& config) {
  config.erase("hidden_act");
  config["hidden_activation"] = "gelu_pytorch_tanh";
  config["sliding_window"] = header.integer("gemma3.attention.sliding_window");
  config["sliding_window_pattern"] = 6;
  config["rope_local_base_freq"] = 10000.0;
  if (const double cap = header.number("gemma3.final_logit_softcapping", 0.0); cap > 0) {
    config["final_logit_softcapping"] = cap;
  }
  // Of the published ones the largest alone, told by its layers, scales by the width a head would have.
  constexpr int64_t kLayersOfLargest = 62;
  const auto head_dim = config.at("head_dim").get<int64_t>();
  const bool is_largest = config.at("num_hidden_layers").get<int64_t>() == kLayersOfLargest;
  config["query_pre_attn_scalar"] =
      is_largest ? config.at("hidden_size").get<int64_t>() / config.at("num_attention_heads").get<int64_t>() : head_dim;
}

const std::vector<GgufArchitecture>& architectures() {
  static const std::vector<GgufArchitecture> list = {
      {.name = "llama", .model_type = "llama", .pairs_heads = true, .says_mlp_bias = true},
      {.name = "qwen2", .model_type = "qwen2", .says_attention_bias = false},
      {.name = "qwen3", .model_type = "qwen3"},
      {.name = "gemma3",
       .model_type = "gemma3_text",
       .norm_offset = 1,
       .norms_behind = true,
       .add_to_config = add_gemma3},
  };
  return list;
}

}  // namespace

std::string GgufArchitecture::hugging_face_name(const std::string& name) const {
  static const std::map<std::string, std::string> outside = {{"token_embd.weight", "model.embed_tokens.weight"},
                                                             {"output_norm.weight", "model.norm.weight"},
                                                             {"output.weight", "lm_head.weight"}};
  static const std::map<std::string, std::string> inside = {
      {"attn_norm", "input_layernorm"},    {"attn_q", "self_attn.q_proj"},
      {"attn_k", "self_attn.k_proj"},      {"attn_v", "self_attn.v_proj"},
      {"attn_output", "self_attn.o_proj"}, {"attn_q_norm", "self_attn.q_norm"},
      {"attn_k_norm", "self_attn.k_norm"}, {"ffn_norm", "post_attention_layernorm"},
      {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
      {"ffn_down", "mlp.down_proj"}};
  static const std::map<std::string, std::string> around = {{"ffn_norm", "pre_feedforward_layernorm"},
                                                            {"post_attention_norm", "post_attention_layernorm"},
                                                            {"post_ffw_norm", "post_feedforward_layernorm"}};
  if (const auto found = outside.find(name); found != outside.end()) return found->second;
  if (!name.starts_with("blk.")) return "";
  const auto layer_end = name.find('.', 4);
  const auto part_end = name.rfind('.');
  if (layer_end == std::string::npos || part_end <= layer_end) return "";
  const auto part = name.substr(layer_end + 1, part_end - layer_end - 1);
  const auto own = [&](const std::string& full) {
    return "model.layers." + name.substr(4, layer_end - 4) + "." + full + name.substr(part_end);
  };
  if (const auto found = around.find(part); norms_behind && found != around.end()) return own(found->second);
  const auto found = inside.find(part);
  return found == inside.end() ? "" : own(found->second);
}

const GgufArchitecture& find_gguf_architecture(const GgufHeader& header) {
  const auto name = header.text("general.architecture");
  std::string known;
  for (const auto& each : architectures()) {
    if (each.name == name) return each;
    known += (known.empty() ? "" : ", ") + each.name;
  }
  fail(header.path, ": GGUF architecture \"", name, "\" is not supported; supported are ", known);
}

}  // namespace troupe
