// A model that says what the test wants: the embedding is the identity, attention and MLP add nothing, and the head
// sends token i to a chosen successor. With it a tokenizer whose tokens are any bytes.
#pragma once

#include <set>

#include "models/text/tokenizer.h"
#include "models/text/unicode.h"
#include "tests/rollout/engine_helpers.h"

namespace troupe::engine_tests {

inline ModelConfig scripted_config(int64_t vocab_size) {
  ModelConfig config;
  config.model_type = "llama";
  config.vocab_size = config.hidden_size = vocab_size;
  config.intermediate_size = 8;
  config.num_hidden_layers = 1;
  config.num_attention_heads = config.num_key_value_heads = 1;
  config.head_dim = 4;
  config.max_position_embeddings = 256;
  return config;
}

/// Token i is followed by successors[i], with a probability that fp32 rounds to 1.
inline WeightSnapshot scripted_weights(int64_t version, const std::vector<int32_t>& successors) {
  const auto size = static_cast<int64_t>(successors.size());
  WeightSnapshot snapshot;
  snapshot.version = version;
  for (const auto& spec : parameter_specs(scripted_config(size))) {
    snapshot.tensors[spec.name] = spec.shape.size() == 1 ? at::ones(spec.shape) : at::zeros(spec.shape);
  }
  snapshot.tensors["model.embed_tokens.weight"] = at::eye(size);
  Tensor head = at::zeros({size, size});
  for (int64_t i = 0; i < size; ++i) head[successors[i]][i] = 100;
  snapshot.tensors["lm_head.weight"] = head;
  return snapshot;
}

/// i -> (i + stride) mod size.
inline WeightSnapshot striding_weights(int64_t version, int64_t size, int64_t stride) {
  std::vector<int32_t> successors(size);
  for (int64_t i = 0; i < size; ++i) successors[i] = static_cast<int32_t>((i + stride) % size);
  return scripted_weights(version, successors);
}

class PieceTokenizer final : public Tokenizer {
 public:
  explicit PieceTokenizer(std::vector<std::string> pieces, std::set<int32_t> special = {}, size_t leading_spaces = 0)
      : pieces_(std::move(pieces)), special_(std::move(special)), leading_spaces_(leading_spaces) {}

  std::vector<int32_t> encode(std::string_view, bool) const override { fail("the engine never encodes (B033)"); }
  std::string decode(const std::vector<int32_t>& ids, bool skip_special_tokens) const override {
    std::string bytes;
    for (const int32_t id : ids) {
      if (!skip_special_tokens || !is_special(id)) bytes += pieces_[id];
    }
    size_t spaces = 0;
    while (spaces < leading_spaces_ && spaces < bytes.size() && bytes[spaces] == ' ') ++spaces;
    return repair_utf8(bytes.substr(spaces));
  }
  int64_t vocab_size() const override { return static_cast<int64_t>(pieces_.size()); }
  int32_t token_id(std::string_view token) const override {
    const auto found = std::find(pieces_.begin(), pieces_.end(), token);
    return found == pieces_.end() ? -1 : static_cast<int32_t>(found - pieces_.begin());
  }
  bool is_special(int32_t id) const override { return special_.count(id) > 0; }
  std::string token_bytes(int32_t id) const override { return pieces_[id]; }
  size_t num_leading_spaces_removed() const override { return leading_spaces_; }

 private:
  std::vector<std::string> pieces_;
  std::set<int32_t> special_;
  size_t leading_spaces_;
};

}  // namespace troupe::engine_tests
