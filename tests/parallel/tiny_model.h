// A small decoder with weights from a fixed seed, a fixed batch of documents, and the loss of one rank's share of it.
#pragma once

#include "models/decoder.h"
#include "models/recompute.h"
#include "parallel/fully_sharded.h"

namespace troupe::parallel_testing {

inline ModelConfig tiny_config(bool tied) {
  ModelConfig config;
  config.model_type = "llama";
  config.vocab_size = 37;  // odd sizes: every unit needs padding on 2 and 4 ranks
  config.hidden_size = 16;
  config.intermediate_size = 23;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 2;
  config.num_key_value_heads = 1;
  config.head_dim = 8;
  config.max_position_embeddings = 64;
  config.tie_word_embeddings = tied;
  return config;
}

inline TensorMap tiny_weights(const ModelConfig& config) {
  TensorMap weights;
  auto generator = at::make_generator<at::CPUGeneratorImpl>(7);
  for (const auto& spec : parameter_specs(config)) {
    const bool is_norm = spec.shape.size() == 1;
    weights[spec.name] = at::randn(spec.shape, generator) * 0.2 + (is_norm ? 1.0 : 0.0);
  }
  return weights;
}

/// Documents of several lengths; rank r of n takes documents r, r + n, ... as one packed row (uneven over ranks).
struct TinyBatch {
  Tensor tokens, targets;
  PackedLayout layout;
};
inline constexpr int kNumDocuments = 9;
inline TinyBatch tiny_rows(const std::vector<int>& documents) {
  TinyBatch batch;
  std::vector<int64_t> tokens, targets;
  for (const int document : documents) {
    const int32_t length = 3 + (document * 5) % 7;
    batch.layout.segments.push_back({batch.layout.num_tokens, length, -1});
    batch.layout.num_tokens += length;
    for (int32_t i = 0; i < length; ++i) {
      tokens.push_back((document * 11 + i * 7 + 3) % 37);
      targets.push_back(i + 1 < length ? (document * 11 + (i + 1) * 7 + 3) % 37 : -1);
    }
  }
  batch.tokens = at::tensor(tokens, at::kLong);
  batch.targets = at::tensor(targets, at::kLong);
  return batch;
}
inline double tiny_denominator() {
  double count = 0;
  for (int document = 0; document < kNumDocuments; ++document) count += 2 + (document * 5) % 7;
  return count;
}
inline std::vector<int> documents_of(int part, int parts) {
  std::vector<int> documents;
  for (int document = part; document < kNumDocuments; document += parts) documents.push_back(document);
  return documents;
}

/// Sum of cross entropy over global count: the parts of all ranks add up to the batch's mean.
inline Tensor tiny_loss(const Tensor& hidden, const Tensor& head, const TinyBatch& batch) {
  const auto logits = at::linear(hidden.to(at::kFloat), head.to(at::kFloat));
  return at::cross_entropy_loss(logits, batch.targets, {}, at::Reduction::Sum, -1) / tiny_denominator();
}

inline Tensor forward_loss(FullyShardedDecoder& model, const TinyBatch& batch) {
  const auto hidden = model.forward(batch.tokens, batch.layout);  // before the head is asked for, as training does
  return tiny_loss(hidden, model.head_weight(), batch);
}

struct TinyResult {
  double loss = 0, norm = 0;
  TensorMap gradients;
};

/// One process, plain autograd: the reference.
inline TinyResult tiny_reference(const ModelConfig& config, const TensorMap& weights) {
  Decoder decoder(config);
  TensorMap leaves;
  for (const auto& [name, weight] : weights) leaves[name] = weight.clone().set_requires_grad(true);
  decoder.bind_all(leaves);
  const auto batch = tiny_rows(documents_of(0, 1));
  const auto loss = tiny_loss(decoder.forward(batch.tokens, batch.layout), decoder.head_weight(), batch);
  loss.backward();
  TinyResult result;
  result.loss = loss.item<double>();
  double squares = 0;
  for (const auto& [name, leaf] : leaves) {
    result.gradients[name] = leaf.grad().clone();
    squares += leaf.grad().to(at::kDouble).square().sum().item<double>();
  }
  result.norm = std::sqrt(squares);
  return result;
}

/// Largest difference relative to the largest gradient.
inline double relative_difference(const TensorMap& got, const TensorMap& expected) {
  double scale = 0, difference = got.size() == expected.size() ? 0 : 1e9;
  for (const auto& [name, tensor] : expected) scale = std::max(scale, tensor.abs().max().item<double>());
  for (const auto& [name, tensor] : expected) {
    difference = std::max(difference, (got.at(name) - tensor).abs().max().item<double>());
  }
  return difference / scale;
}

}  // namespace troupe::parallel_testing
