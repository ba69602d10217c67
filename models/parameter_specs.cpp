// The list of a network's parameters: names and shapes as in the Hugging Face checkpoint.
#include "models/config.h"

#include "base/error.h"

namespace troupe {

std::vector<ParameterSpec> parameter_specs(const ModelConfig& config) {
  const auto hidden = config.hidden_size;
  const auto inner = config.intermediate_size;
  const auto queries = config.num_attention_heads * config.head_dim;
  const auto keys = config.num_key_value_heads * config.head_dim;
  std::vector<ParameterSpec> specs;
  specs.push_back({"model.embed_tokens.weight", {config.vocab_size, hidden}, 0});
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const auto prefix = concat("model.layers.", layer, ".");
    const auto add = [&](const char* name, std::vector<int64_t> shape) {
      specs.push_back({prefix + name, std::move(shape), layer + 1});
    };
    const auto add_linear = [&](const std::string& name, int64_t out, int64_t in, bool bias) {
      add((name + ".weight").c_str(), {out, in});
      if (bias) add((name + ".bias").c_str(), {out});
    };
    add("input_layernorm.weight", {hidden});
    add_linear("self_attn.q_proj", queries, hidden, config.attention_bias);
    add_linear("self_attn.k_proj", keys, hidden, config.attention_bias);
    add_linear("self_attn.v_proj", keys, hidden, config.attention_bias);
    add_linear("self_attn.o_proj", hidden, queries, config.attention_output_bias);
    if (config.query_key_norm) {
      add("self_attn.q_norm.weight", {config.head_dim});
      add("self_attn.k_norm.weight", {config.head_dim});
    }
    add("post_attention_layernorm.weight", {hidden});
    add_linear("mlp.gate_proj", inner, hidden, config.mlp_bias);
    add_linear("mlp.up_proj", inner, hidden, config.mlp_bias);
    add_linear("mlp.down_proj", hidden, inner, config.mlp_bias);
  }
  const auto last = config.num_hidden_layers + 1;
  specs.push_back({"model.norm.weight", {hidden}, last});
  if (config.num_labels > 0) {
    specs.push_back({"score.weight", {config.num_labels, hidden}, last});
  } else if (!config.tie_word_embeddings) {
    specs.push_back({"lm_head.weight", {config.vocab_size, hidden}, last});
  }
  return specs;
}

int64_t ModelConfig::num_parameters() const {
  int64_t count = 0;
  for (const auto& spec : parameter_specs(*this)) {
    int64_t size = 1;
    for (const auto extent : spec.shape) size *= extent;
    count += size;
  }
  return count;
}

}  // namespace troupe
