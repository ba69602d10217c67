// The list of a network's parameters: names and shapes as in the Hugging Face checkpoint.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "models/config.h"

namespace troupe {
namespace {

/// The parameters of one layer, in order.
class LayerSpecs {
 public:
  LayerSpecs(const ModelConfig& config, int64_t index, std::vector<ParameterSpec>& specs)
      : config_(config),
        layer_(config.layer(index)),
        prefix_(concat("model.layers.", index, ".")),
        unit_(index + 1),
        specs_(specs) {}

  void add_all() {
    const auto& names = config_.names;
    add_norm(names.mixer_input_norm);
    if (layer_.mixer == Mixer::kAttention) add_attention();
    if (layer_.mixer == Mixer::kLatentAttention) add_latent_attention();
    if (layer_.mixer == Mixer::kDeltaNet) add_delta_net();
    add_norm(names.mixer_output_norm);
    add_norm(names.mlp_input_norm);
    if (layer_.has_experts) {
      add_experts();
    } else {
      add_mlp(names.mlp, config_.intermediate_size, config_.mlp_bias);
    }
    add_norm(names.mlp_output_norm);
  }

 private:
  void add(const std::string& name, std::vector<int64_t> shape, bool is_trained = true) {
    specs_.push_back({prefix_ + name, std::move(shape), unit_, is_trained});
  }
  void add_norm(const std::string& name) {
    if (!name.empty()) add(name + ".weight", {config_.hidden_size});
  }
  void add_linear(const std::string& name, int64_t out, int64_t in, bool bias = false) {
    add(name + ".weight", {out, in});
    if (bias) add(name + ".bias", {out});
  }
  void add_mlp(const std::string& name, int64_t inner, bool bias) {
    add_linear(name + ".gate_proj", inner, config_.hidden_size, bias);
    add_linear(name + ".up_proj", inner, config_.hidden_size, bias);
    add_linear(name + ".down_proj", config_.hidden_size, inner, bias);
  }

  void add_attention() {
    const auto hidden = config_.hidden_size, queries = config_.num_attention_heads * config_.head_dim;
    const auto keys = config_.num_key_value_heads * config_.head_dim;
    add_linear("self_attn.q_proj", config_.attention_gate ? 2 * queries : queries, hidden, config_.attention_bias);
    add_linear("self_attn.k_proj", keys, hidden, config_.attention_bias);
    add_linear("self_attn.v_proj", keys, hidden, config_.attention_bias);
    add_linear("self_attn.o_proj", hidden, queries, config_.attention_output_bias);
    if (config_.query_key_norm) {
      add("self_attn.q_norm.weight", {config_.norm_over_heads ? queries : config_.head_dim});
      add("self_attn.k_norm.weight", {config_.norm_over_heads ? keys : config_.head_dim});
    }
    if (config_.attention_sinks) add("self_attn.sinks", {config_.num_attention_heads});
  }

  void add_latent_attention() {
    const auto& latent = config_.latent;
    const auto hidden = config_.hidden_size, heads = config_.num_attention_heads;
    if (latent.query_rank > 0) {
      add_linear("self_attn.q_a_proj", latent.query_rank, hidden, config_.attention_bias);
      add("self_attn.q_a_layernorm.weight", {latent.query_rank});
      add_linear("self_attn.q_b_proj", heads * latent.query_dim(), latent.query_rank);
    } else {
      add_linear("self_attn.q_proj", heads * latent.query_dim(), hidden);
    }
    add_linear("self_attn.kv_a_proj_with_mqa", latent.key_value_rank + latent.rotary_dim, hidden,
               config_.attention_bias);
    add("self_attn.kv_a_layernorm.weight", {latent.key_value_rank});
    add_linear("self_attn.kv_b_proj", heads * (latent.plain_dim + latent.value_dim), latent.key_value_rank);
    add_linear("self_attn.o_proj", hidden, heads * latent.value_dim, config_.attention_output_bias);
  }

  void add_delta_net() {
    const auto& delta = config_.delta;
    const auto hidden = config_.hidden_size;
    if (delta.joined_projections) {
      add_linear("linear_attn.in_proj_qkvz", delta.convolved_size() + delta.values_size(), hidden);
      add_linear("linear_attn.in_proj_ba", 2 * delta.num_value_heads, hidden);
    } else {
      add_linear("linear_attn.in_proj_qkv", delta.convolved_size(), hidden);
      add_linear("linear_attn.in_proj_z", delta.values_size(), hidden);
      add_linear("linear_attn.in_proj_b", delta.num_value_heads, hidden);
      add_linear("linear_attn.in_proj_a", delta.num_value_heads, hidden);
    }
    add("linear_attn.conv1d.weight", {delta.convolved_size(), 1, delta.kernel_size});
    add("linear_attn.dt_bias", {delta.num_value_heads});
    add("linear_attn.A_log", {delta.num_value_heads});
    add("linear_attn.norm.weight", {delta.value_dim});
    add_linear("linear_attn.out_proj", hidden, delta.values_size());
  }

  void add_experts() {
    const auto& moe = config_.moe;
    const auto& names = config_.names;
    const auto hidden = config_.hidden_size, inner = moe.intermediate_size;
    add_linear(names.experts + "." + names.router, moe.num_experts, hidden, moe.router_bias);
    if (moe.choice_bias) {
      add(names.experts + "." + names.router + ".e_score_correction_bias", {moe.num_experts}, /*is_trained=*/false);
    }
    const auto experts = names.experts + ".experts.";
    const int64_t begin = moe.held_begin, end = moe.held_begin + moe.num_held();
    const auto add_of_experts = [&](const std::string& name, std::vector<int64_t> shape, int64_t first, int64_t last) {
      specs_.push_back({prefix_ + experts + name, std::move(shape), unit_, true, first, last});
    };
    if (moe.form == ExpertForm::kSeparate) {
      const auto add_one = [&](int64_t e, const std::string& name, int64_t out, int64_t in) {
        add_of_experts(concat(e, ".", name, ".weight"), {out, in}, e, e + 1);
      };
      for (int64_t e = begin; e < end; ++e) {
        add_one(e, names.expert_gate, inner, hidden);
        add_one(e, names.expert_up, inner, hidden);
      }
      for (int64_t e = begin; e < end; ++e) add_one(e, names.expert_down, hidden, inner);
    } else {
      const auto stacked = [&](const std::string& name, int64_t out, int64_t in) {
        add_of_experts(name, {end - begin, in, out}, begin, end);
        if (moe.expert_bias) add_of_experts(name + "_bias", {end - begin, out}, begin, end);
      };
      stacked("gate_up_proj", 2 * inner, hidden);
      stacked("down_proj", hidden, inner);
    }
    if (moe.shared_intermediate_size > 0) {
      add_mlp(names.experts + "." + names.shared_expert, moe.shared_intermediate_size, false);
      if (moe.shared_gate) add_linear(names.experts + "." + names.shared_expert + "_gate", 1, hidden);
    }
  }

  const ModelConfig& config_;
  const LayerConfig& layer_;
  std::string prefix_;
  int64_t unit_;
  std::vector<ParameterSpec>& specs_;
};

}  // namespace

std::vector<ParameterSpec> parameter_specs(const ModelConfig& config) {
  const auto hidden = config.hidden_size;
  std::vector<ParameterSpec> specs;
  specs.push_back({"model.embed_tokens.weight", {config.vocab_size, hidden}, 0});
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) LayerSpecs(config, layer, specs).add_all();
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

const LayerConfig& ModelConfig::layer(int64_t index) const {
  static const LayerConfig plain;
  return layers.empty() ? plain : layers.at(static_cast<size_t>(index));
}

std::vector<int64_t> ModelConfig::attention_windows() const {
  std::vector<int64_t> windows;
  for (const auto& layer : layers) windows.push_back(layer.window);
  const bool any = std::any_of(windows.begin(), windows.end(), [](int64_t window) { return window > 0; });
  return any ? windows : std::vector<int64_t>{};
}

double ModelConfig::softmax_scale() const {
  if (!has(Mixer::kLatentAttention)) {
    return attention_scale > 0 ? attention_scale : 1 / std::sqrt(static_cast<double>(head_dim));
  }
  // DeepSeek's reading of yarn scales the scores too.
  const bool is_scaled = rope.kind == "yarn" && rope.magnitude_all != 0 && rope.factor > 1;
  const double magnitude = is_scaled ? 0.1 * rope.magnitude_all * std::log(rope.factor) + 1 : 1;
  return magnitude * magnitude / std::sqrt(static_cast<double>(latent.query_dim()));
}

bool ModelConfig::has(Mixer mixer) const {
  if (layers.empty()) return mixer == Mixer::kAttention;
  return std::any_of(layers.begin(), layers.end(), [&](const auto& layer) { return layer.mixer == mixer; });
}

bool ModelConfig::has_experts() const {
  return std::any_of(layers.begin(), layers.end(), [](const auto& layer) { return layer.has_experts; });
}

}  // namespace troupe
