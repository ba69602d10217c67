// A small random decoder for tests.
#pragma once

#include "models/decoder.h"

namespace troupe::testing {

/// Two layers, four query heads over two key/value heads; `family` "llama" or "qwen3" (head norms).
inline ModelConfig tiny_config(const std::string& family = "llama", int64_t head_dim = 12) {
  ModelConfig config;
  config.model_type = family;
  config.vocab_size = 50;
  config.hidden_size = 32;
  config.intermediate_size = 48;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = head_dim;
  config.max_position_embeddings = 512;
  config.tie_word_embeddings = true;
  config.query_key_norm = family == "qwen3";
  return config;
}

/// Leaves that require gradients, from a fixed seed.
inline TensorMap random_weights(const ModelConfig& config, at::ScalarType dtype, uint64_t seed = 1) {
  at::manual_seed(seed);
  TensorMap weights;
  for (const ParameterSpec& spec : parameter_specs(config)) {
    Tensor weight = at::randn(spec.shape, at::kDouble) * 0.3;
    if (spec.shape.size() == 1) weight += 1;
    weights[spec.name] = weight.to(dtype).requires_grad_();
  }
  return weights;
}

/// Root documents of the given lengths, one after another.
inline PackedLayout documents(const std::vector<int32_t>& lengths) {
  PackedLayout layout;
  for (const int32_t length : lengths) {
    layout.segments.push_back({layout.num_tokens, length, -1});
    layout.num_tokens += length;
  }
  return layout;
}

/// Largest |a - b| over the largest |b|.
inline double relative_difference(const Tensor& a, const Tensor& b) {
  const Tensor x = a.detach().to(at::kDouble), y = b.detach().to(at::kDouble);
  return (x - y).abs().max().item<double>() / std::max(1e-30, y.abs().max().item<double>());
}

}  // namespace troupe::testing
