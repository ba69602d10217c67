// The decoder: its parameters, its units, and what the layers of a row share.
#include "models/decoder.h"

#include <cmath>

#include "base/error.h"
#include "models/blocks/attention.h"
#include "models/blocks/latent_attention.h"
#include "models/blocks/norm.h"
#include "models/blocks/rope.h"

namespace troupe {

Decoder::Decoder(ModelConfig config) : config_(std::move(config)), specs_(parameter_specs(config_)) {
  require(config_.num_key_value_heads > 0 && config_.num_attention_heads % config_.num_key_value_heads == 0,
          "num_attention_heads (", config_.num_attention_heads, ") must be a multiple of num_key_value_heads (",
          config_.num_key_value_heads, ")");
  // What is not bound is its shape alone.
  for (const auto& spec : specs_) parameters_[spec.name] = at::empty(spec.shape, at::TensorOptions(at::kMeta));
  require(config_.rotated_dim() % 2 == 0, "rope turns ", config_.rotated_dim(), " dimensions, which are no pairs");
}

void Decoder::bind(const std::string& name, Tensor parameter) {
  const auto place = parameters_.find(name);
  require(place != parameters_.end(), "the ", config_.model_type, " network has no parameter \"", name, "\"");
  require(parameter.sizes() == place->second.sizes(), "parameter \"", name, "\" has shape ", parameter.sizes(),
          ", expected ", place->second.sizes());
  place->second = std::move(parameter);
}

void Decoder::bind_all(const TensorMap& weights) {
  for (const auto& [name, tensor] : weights) bind(name, tensor);
  for (const ParameterSpec& spec : specs_) {
    require(weights.contains(spec.name), "parameter \"", spec.name, "\" is missing from the weights");
  }
}

const Tensor& Decoder::parameter(const std::string& name) const {
  const auto found = parameters_.find(name);
  require(found != parameters_.end() && !found->second.is_meta(), "parameter \"", name,
          "\" was not given to the network");
  return found->second;
}

Tensor Decoder::optional_parameter(const std::string& name) const {
  return parameters_.contains(name) ? parameter(name) : Tensor();
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
  const int64_t last_unit = num_units() - 1;
  // Units hold their context by pointer: a recomputing runner calls them again after this function has returned.
  std::map<LayerConfig, Context> contexts;
  Tensor x = x_TD;
  for (int64_t unit = begin; unit < end; ++unit) {
    if (unit == 0) {
      x = runner.run(
          unit, [this, tokens_T](const Tensor&) { return embed(tokens_T); }, Tensor());
    } else if (unit < last_unit) {
      auto& context = contexts[config_.layer(unit - 1)];
      if (context == nullptr) context = make_context(config_.layer(unit - 1), layout, x);
      x = runner.run(
          unit, [this, unit, context](const Tensor& input) { return layer(unit - 1, input, context); }, x);
    } else {
      const auto norm = [this](const Tensor& input) {
        return exchange_->enter(blocks::rms_norm(input, parameter("model.norm.weight"), config_.rms_norm_eps,
                                                 config_.norm_from_one ? 1 : 0));
      };
      x = runner.run(unit, norm, x);
    }
  }
  return x;
}

Tensor Decoder::embed(const Tensor& tokens_T) const {
  const Tensor x = exchange_->embed(tokens_T, parameter("model.embed_tokens.weight"));
  if (config_.embedding_scale == 1) return x;
  // Rounded as the checkpoint's dtype has it.
  return x * at::scalar_tensor(config_.embedding_scale, x.options()).item();
}

Decoder::Context Decoder::make_context(const LayerConfig& layer, const PackedLayout& layout, const Tensor& x_TD) const {
  auto context = std::make_shared<blocks::AttentionContext>();
  context->layout = layout;
  context->shape = {config_.num_attention_heads,
                    config_.num_key_value_heads,
                    config_.head_dim,
                    config_.softmax_scale(),
                    layer.window,
                    layer.chunk};
  if (layer.mixer == Mixer::kLatentAttention) {
    context->shape.num_key_value_heads = config_.num_attention_heads;
    context->shape.head_dim = blocks::latent_head_dim(config_.latent);
  }
  context->norm_eps = config_.rms_norm_eps;
  context->norm_offset = config_.norm_from_one ? 1 : 0;
  context->norm_over_heads = config_.norm_over_heads;
  context->rope_interleaved = config_.rope_interleaved;
  context->exchange = exchange_;
  if (layer.mixer == Mixer::kDeltaNet) return context;
  // A rank that holds a part of each document does not know their lengths: it stays within the constant length.
  const auto positions = exchange_->positions(layout);
  if (layer.rope != LayerRope::kNone) {
    const bool is_whole = static_cast<int32_t>(positions.size()) == layout.num_tokens;
    context->rope_table_Td =
        blocks::rope_table(config_.rope_of(layer), config_.rotated_dim(), positions, x_TD.scalar_type(), x_TD.device(),
                           is_whole ? layout.document_lengths() : std::vector<int32_t>{});
    context->unit_norm = config_.unit_query_key;
  } else if (config_.temperature_scale != 0) {
    const auto type = x_TD.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const Tensor place = at::tensor(positions, at::kInt).to(type) + 1;
    context->query_factors_T =
        (at::log1p(at::floor(place / config_.temperature_floor)) * config_.temperature_scale + 1).to(x_TD.device());
  }
  return context;
}

const Tensor& Decoder::head_weight() const {
  if (config_.num_labels > 0) return parameter("score.weight");
  return parameter(config_.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight");
}

Tensor Decoder::logits(const Tensor& hidden_TD) const {
  const auto type = hidden_TD.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const Tensor logits = at::linear(hidden_TD.to(type), head_weight().to(type));
  if (config_.logit_softcap == 0 || config_.num_labels > 0) return logits;
  return at::tanh(logits / config_.logit_softcap) * config_.logit_softcap;
}

}  // namespace troupe
