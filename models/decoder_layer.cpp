// One layer of the decoder: which blocks it is made of, and which parameters they read.
//
//   x -> [norm] -> attention, latent attention or delta net -> output projection -> [norm] -> + x
//     -> [norm] -> MLP, or experts and the shared expert                         -> [norm] -> +
#include "base/error.h"
#include "models/blocks/attention.h"
#include "models/blocks/delta_net.h"
#include "models/blocks/experts.h"
#include "models/blocks/latent_attention.h"
#include "models/blocks/linear.h"
#include "models/blocks/mlp.h"
#include "models/blocks/norm.h"
#include "models/decoder.h"

namespace troupe {

class Decoder::Layer {
 public:
  Layer(const Decoder& decoder, int64_t index, Context context)
      : decoder_(decoder),
        config_(decoder.config_),
        layer_(config_.layer(index)),
        names_(config_.names),
        exchange_(*decoder.exchange_),
        index_(index),
        prefix_(concat("model.layers.", index, ".")),
        context_(std::move(context)) {}

  Tensor run(const Tensor& x) const {
    // The delta rule's decays are differences of sums of hundreds: in fp32 a last bit of its input can move an output
    // that is nearly nothing, and the norm behind it, by more than all other roundings together. So that it moves as in
    // the reference, the input is rounded as there.
    const bool plainly = layer_.mixer == Mixer::kDeltaNet && x.scalar_type() == at::kFloat;
    const Tensor mixer_input = names_.mixer_input_norm.empty() ? x : norm(x, names_.mixer_input_norm, plainly);
    const Tensor mixed = output_norm(mix(exchange_.enter(mixer_input)), names_.mixer_output_norm);
    if (names_.mlp_input_norm.empty()) {
      const Tensor sum = x + mixed;
      return sum + output_norm(mlp(sum), names_.mlp_output_norm);
    }
    const auto [sum, mlp_input] =
        blocks::add_rms_norm(x, mixed, get(names_.mlp_input_norm + ".weight"), config_.rms_norm_eps, norm_offset());
    return sum + output_norm(mlp(mlp_input), names_.mlp_output_norm);
  }

 private:
  const Tensor& get(const std::string& name) const { return decoder_.parameter(prefix_ + name); }
  Tensor maybe(const std::string& name) const { return decoder_.optional_parameter(prefix_ + name); }
  double norm_offset() const { return config_.norm_from_one ? 1 : 0; }
  Tensor norm(const Tensor& x, const std::string& name, bool plainly = false) const {
    return blocks::rms_norm(x, get(name + ".weight"), config_.rms_norm_eps, norm_offset(), plainly);
  }
  Tensor output_norm(const Tensor& x, const std::string& name) const { return name.empty() ? x : norm(x, name); }

  /// Of a product whose inner dimension may be split: the bias comes once, after the sum of the parts.
  Tensor leave(const Tensor& y, const Tensor& late_bias) const {
    const Tensor sum = exchange_.leave(y);
    return late_bias.defined() ? sum + late_bias : sum;
  }
  Tensor project(const Tensor& x, const std::string& name) const {
    const Tensor bias = maybe(name + ".bias");
    const bool late = exchange_.sums_parts();
    return leave(blocks::linear(x, get(name + ".weight"), late ? Tensor() : bias), late ? bias : Tensor());
  }

  Tensor mix(const Tensor& x) const {
    switch (layer_.mixer) {
      case Mixer::kLatentAttention:
        return project(latent_attention(x), "self_attn.o_proj");
      case Mixer::kDeltaNet:
        return project(delta_net(x), "linear_attn.out_proj");
      case Mixer::kAttention:
        break;
    }
    const blocks::AttentionWeights weights = {get("self_attn.q_proj.weight"),   get("self_attn.k_proj.weight"),
                                              get("self_attn.v_proj.weight"),   maybe("self_attn.q_proj.bias"),
                                              maybe("self_attn.k_proj.bias"),   maybe("self_attn.v_proj.bias"),
                                              maybe("self_attn.q_norm.weight"), maybe("self_attn.k_norm.weight"),
                                              maybe("self_attn.sinks"),         config_.attention_gate};
    return project(blocks::self_attention(x, weights, context_), "self_attn.o_proj");
  }

  Tensor latent_attention(const Tensor& x) const {
    blocks::LatentWeights weights;
    if (config_.latent.query_rank > 0) {
      weights.q_down = get("self_attn.q_a_proj.weight");
      weights.q_down_bias = maybe("self_attn.q_a_proj.bias");
      weights.q_norm = get("self_attn.q_a_layernorm.weight");
      weights.q = get("self_attn.q_b_proj.weight");
    } else {
      weights.q = get("self_attn.q_proj.weight");
    }
    weights.kv_down = get("self_attn.kv_a_proj_with_mqa.weight");
    weights.kv_down_bias = maybe("self_attn.kv_a_proj_with_mqa.bias");
    weights.kv_norm = get("self_attn.kv_a_layernorm.weight");
    weights.kv = get("self_attn.kv_b_proj.weight");
    return blocks::latent_attention(x, weights, config_.latent, context_);
  }

  Tensor delta_net(const Tensor& x) const {
    blocks::DeltaWeights weights;
    const std::vector<std::string> projections =
        config_.delta.joined_projections
            ? std::vector<std::string>{"in_proj_qkvz", "in_proj_ba"}
            : std::vector<std::string>{"in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"};
    for (const auto& name : projections) weights.in_projections.push_back(get("linear_attn." + name + ".weight"));
    weights.convolution = get("linear_attn.conv1d.weight");
    weights.dt_bias_H = get("linear_attn.dt_bias");
    weights.a_log_H = get("linear_attn.A_log");
    weights.norm_d = get("linear_attn.norm.weight");
    return blocks::delta_net(x, weights, config_.delta, config_.rms_norm_eps, context_->layout);
  }

  Tensor mlp(const Tensor& x) const { return layer_.has_experts ? experts(x) : dense_mlp(x, names_.mlp); }

  Tensor dense_mlp(const Tensor& input, const std::string& name) const {
    const Tensor x = exchange_.enter(input);
    const bool late = exchange_.sums_parts();
    const Tensor bias = maybe(name + ".down_proj.bias");
    const blocks::MlpWeights weights = {get(name + ".gate_proj.weight"), get(name + ".up_proj.weight"),
                                        get(name + ".down_proj.weight"), maybe(name + ".gate_proj.bias"),
                                        maybe(name + ".up_proj.bias"),   late ? Tensor() : bias};
    return leave(blocks::gated_mlp(x, weights, config_.activation), late ? bias : Tensor());
  }

  Tensor experts(const Tensor& x) const {
    const auto& moe = config_.moe;
    const std::string router = names_.experts + "." + names_.router, experts = names_.experts + ".experts.";
    const auto routing = blocks::route(
        x, {get(router + ".weight"), maybe(router + ".bias"), maybe(router + ".e_score_correction_bias")}, moe);
    blocks::ExpertWeights weights;
    if (moe.form == ExpertForm::kSeparate) {
      const auto expert = [&](int64_t e, const std::string& name) {
        return get(concat(experts, e, ".", name, ".weight"));
      };
      for (int64_t e = moe.held_begin; e < moe.held_begin + moe.num_held(); ++e) {
        weights.gate_up.push_back(expert(e, names_.expert_gate));
        weights.gate_up.push_back(expert(e, names_.expert_up));
        weights.down.push_back(expert(e, names_.expert_down));
      }
    } else {
      weights.gate_up = {get(experts + "gate_up_proj")};
      weights.down = {get(experts + "down_proj")};
      weights.gate_up_bias = maybe(experts + "gate_up_proj_bias");
      weights.down_bias = maybe(experts + "down_proj_bias");
    }
    const Tensor routed =
        exchange_.experts(index_, x, routing, [&](const Tensor& tokens, const blocks::Routing& chosen) {
          return blocks::experts(tokens, chosen, weights, moe, config_.activation);
        });
    if (moe.shared_intermediate_size == 0) return routed;
    const std::string shared_name = names_.experts + "." + names_.shared_expert;
    const Tensor shared = dense_mlp(x, shared_name);
    if (!moe.shared_gate) return routed + shared;
    return routed + at::sigmoid(blocks::linear(x, get(shared_name + "_gate.weight"), {})) * shared;
  }

  const Decoder& decoder_;
  const ModelConfig& config_;
  const LayerConfig& layer_;
  const ParameterNames& names_;
  const Exchange& exchange_;
  const int64_t index_;
  const std::string prefix_;
  const Context context_;
};

Tensor Decoder::layer(int64_t index, const Tensor& x_TD, const Context& context) const {
  return Layer(*this, index, context).run(x_TD);
}

}  // namespace troupe
