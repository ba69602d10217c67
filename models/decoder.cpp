// The dense decoder: which blocks a layer is made of, and which parameters they read.
#include "models/decoder.h"

#include <cmath>

#include "base/error.h"
#include "models/blocks/attention.h"
#include "models/blocks/linear.h"
#include "models/blocks/mlp.h"
#include "models/blocks/norm.h"
#include "models/blocks/rope.h"

namespace troupe {

Decoder::Decoder(ModelConfig config) : config_(std::move(config)), specs_(parameter_specs(config_)) {
  require(config_.num_key_value_heads > 0 && config_.num_attention_heads % config_.num_key_value_heads == 0,
          "num_attention_heads (", config_.num_attention_heads, ") must be a multiple of num_key_value_heads (",
          config_.num_key_value_heads, ")");
  require(config_.head_dim % 2 == 0, "head_dim (", config_.head_dim, ") must be even for rotary embeddings");
}

void Decoder::bind(const std::string& name, Tensor parameter) {
  const auto spec = std::find_if(specs_.begin(), specs_.end(), [&](const auto& each) { return each.name == name; });
  require(spec != specs_.end(), "the ", config_.model_type, " network has no parameter \"", name, "\"");
  require(parameter.sizes() == at::IntArrayRef(spec->shape), "parameter \"", name, "\" has shape ", parameter.sizes(),
          ", expected ", at::IntArrayRef(spec->shape));
  parameters_[name] = std::move(parameter);
}

void Decoder::bind_all(const TensorMap& weights) {
  for (const auto& [name, tensor] : weights) bind(name, tensor);
  for (const ParameterSpec& spec : specs_) {
    require(weights.contains(spec.name), "parameter \"", spec.name, "\" is missing from the weights");
  }
}

const Tensor& Decoder::parameter(const std::string& name) const {
  const auto found = parameters_.find(name);
  require(found != parameters_.end(), "parameter \"", name, "\" was not given to the network");
  return found->second;
}

Tensor Decoder::optional_parameter(const std::string& name) const {
  const bool exists = std::any_of(specs_.begin(), specs_.end(), [&](const auto& each) { return each.name == name; });
  return exists ? parameter(name) : Tensor();
}

Tensor Decoder::forward(const Tensor& tokens_T, const PackedLayout& layout) const {
  UnitRunner runner;
  return forward(tokens_T, layout, runner);
}

Tensor Decoder::forward(const Tensor& tokens_T, const PackedLayout& layout, UnitRunner& runner) const {
  return forward_units(0, num_units(), Tensor(), tokens_T, layout, runner);
}

Tensor Decoder::forward_units(int64_t begin, int64_t end, const Tensor& x_TD, const Tensor& tokens_T,
                              const PackedLayout& layout, UnitRunner& runner) const {
  layout.check();
  require(tokens_T.dim() == 1 && tokens_T.numel() == layout.num_tokens, "the row has ", tokens_T.numel(),
          " tokens, its layout ", layout.num_tokens);
  // Units hold the context by pointer: a recomputing runner calls them again after this function has returned.
  auto context = std::make_shared<blocks::AttentionContext>();
  context->layout = layout;
  context->shape = {config_.num_attention_heads, config_.num_key_value_heads, config_.head_dim,
                    1 / std::sqrt(static_cast<double>(config_.head_dim)), /*window=*/0};
  context->norm_eps = config_.rms_norm_eps;
  context->exchange = exchange_;
  const int64_t last_unit = num_units() - 1;
  std::map<int64_t, std::shared_ptr<const blocks::AttentionContext>> by_window;
  Tensor x = x_TD;
  for (int64_t unit = begin; unit < end; ++unit) {
    if (unit == 0) {
      const auto embed = [this, tokens_T](const Tensor&) {
        return exchange_->embed(tokens_T, parameter("model.embed_tokens.weight"));
      };
      x = runner.run(unit, embed, Tensor());
    } else if (unit < last_unit) {
      if (!context->rope_table_Td.defined()) {
        // A rank that holds a part of each document does not know their lengths: it stays within the constant length.
        const auto positions = exchange_->positions(layout);
        const bool is_whole = static_cast<int32_t>(positions.size()) == layout.num_tokens;
        context->rope_table_Td =
            blocks::rope_table(config_.rope, config_.head_dim, positions, x.scalar_type(), x.device(),
                               is_whole ? layout.document_lengths() : std::vector<int32_t>{});
      }
      auto& of_layer = by_window[config_.attention_window(unit - 1)];
      if (of_layer == nullptr) {
        auto windowed = std::make_shared<blocks::AttentionContext>(*context);
        windowed->shape.window = config_.attention_window(unit - 1);
        of_layer = windowed;
      }
      x = runner.run(
          unit, [this, unit, of_layer](const Tensor& input) { return layer(unit - 1, input, of_layer); }, x);
    } else {
      const auto norm = [this](const Tensor& input) {
        return exchange_->enter(blocks::rms_norm(input, parameter("model.norm.weight"), config_.rms_norm_eps));
      };
      x = runner.run(unit, norm, x);
    }
  }
  return x;
}

Tensor Decoder::layer(int64_t index, const Tensor& x_TD,
                      const std::shared_ptr<const blocks::AttentionContext>& context) const {
  const std::string prefix = concat("model.layers.", index, ".");
  const auto get = [&](const char* name) { return parameter(prefix + name); };
  const auto maybe = [&](const char* name) { return optional_parameter(prefix + name); };
  const blocks::AttentionWeights attention = {get("self_attn.q_proj.weight"),   get("self_attn.k_proj.weight"),
                                              get("self_attn.v_proj.weight"),   maybe("self_attn.q_proj.bias"),
                                              maybe("self_attn.k_proj.bias"),   maybe("self_attn.v_proj.bias"),
                                              maybe("self_attn.q_norm.weight"), maybe("self_attn.k_norm.weight")};
  const bool late = exchange_->sums_parts();
  const blocks::MlpWeights mlp = {get("mlp.gate_proj.weight"), get("mlp.up_proj.weight"),
                                  get("mlp.down_proj.weight"), maybe("mlp.gate_proj.bias"),
                                  maybe("mlp.up_proj.bias"),   late ? Tensor() : maybe("mlp.down_proj.bias")};
  const auto leave = [&](const Tensor& y, const char* bias) {
    const Tensor sum = exchange_->leave(y), late_bias = late ? maybe(bias) : Tensor();
    return late_bias.defined() ? sum + late_bias : sum;
  };
  const Tensor normed = exchange_->enter(blocks::rms_norm(x_TD, get("input_layernorm.weight"), config_.rms_norm_eps));
  const Tensor attended = blocks::self_attention(normed, attention, context);
  const Tensor projected =
      leave(blocks::linear(attended, get("self_attn.o_proj.weight"), late ? Tensor() : maybe("self_attn.o_proj.bias")),
            "self_attn.o_proj.bias");
  const auto [sum, mlp_input] =
      blocks::add_rms_norm(x_TD, projected, get("post_attention_layernorm.weight"), config_.rms_norm_eps);
  return sum + leave(blocks::gated_mlp(exchange_->enter(mlp_input), mlp), "mlp.down_proj.bias");
}

const Tensor& Decoder::head_weight() const {
  if (config_.num_labels > 0) return parameter("score.weight");
  return parameter(config_.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight");
}

Tensor Decoder::logits(const Tensor& hidden_TD) const {
  const auto type = hidden_TD.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return at::linear(hidden_TD.to(type), head_weight().to(type));
}

}  // namespace troupe
