// The unigram language model (Kudo 2018): of all ways to cut a piece into tokens, the likeliest.
#pragma once

#include "models/text/token_model.h"

namespace troupe {

class UnigramModel : public TokenModel {
 public:
  /// `json`: "vocab" a list of [token, log-probability] in order of ids, "unk_id", "byte_fallback".
  explicit UnigramModel(const nlohmann::json& json);
  /// Time O(length of the piece * length of the longest token). Throws Error where a character has no token and the
  /// model no unknown one.
  void encode(std::string_view piece, std::vector<TokenSpan>& out) const override;
  const Vocabulary& vocabulary() const override { return vocabulary_; }

 private:
  /// A trie over the tokens' bytes: children of a node by hash of (node, byte).
  struct Child {
    uint32_t parent = kNone, node = 0;
    unsigned char byte = 0;
  };
  static constexpr uint32_t kNone = ~uint32_t{0};

  uint32_t find_child(uint32_t parent, unsigned char byte) const;
  uint32_t add_child(uint32_t parent, unsigned char byte);
  void add_token(std::string_view token, int32_t id);
  void give(std::string_view text, std::vector<TokenSpan>& out) const;

  Vocabulary vocabulary_;
  std::vector<double> scores_;
  std::vector<Child> children_;    // open addressing, power of two
  std::vector<int32_t> node_ids_;  // token that ends at a node, or -1
  std::vector<int32_t> byte_ids_;  // [256], empty without byte fallback
  int32_t unknown_id_ = -1;
  double unknown_score_ = 0;
};

}  // namespace troupe
