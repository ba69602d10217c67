// Byte-pair encoding (Sennrich et al. 2016): the pieces of a text become token ids by merges in order of rank.
#pragma once

#include "models/text/token_model.h"

namespace troupe {

/// Spreads the bits of two ids.
inline uint64_t mix_pair(uint64_t key) {
  key ^= key >> 31;
  key *= 0x9E3779B97F4A7C15ull;
  return key ^ key >> 29;
}

class BytePairModel : public TokenModel {
 public:
  /// `json` is the "model" of a tokenizer.json. `byte_level`: pieces come as raw bytes and the vocabulary is written in
  /// the byte alphabet. Where `merge_by_rank` is true (a key of our own, for tiktoken's files) there is no list of
  /// merges: two neighbours merge where their union is a token, the one with the lowest id first. Throws Error naming
  /// what is wrong (a merge by its index) or not supported.
  BytePairModel(const nlohmann::json& json, bool byte_level);

  /// Time O(n log n) in the length of the piece.
  void encode(std::string_view piece, std::vector<TokenSpan>& out) const override;
  const Vocabulary& vocabulary() const override { return vocabulary_; }

 private:
  struct Merge {
    uint64_t pair = kNoPair;
    uint32_t rank = 0;
    int32_t id = -1;
  };
  static constexpr uint64_t kNoPair = ~uint64_t{0};
  static uint64_t pair_key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }

  void read_merges(const nlohmann::json& merges);
  void merge_by_rank();
  void find_whole_pieces();
  void find_joints();
  int32_t character_id(std::string_view character) const;
  bool may_join(int32_t left, int32_t right) const;
  const Merge* find_merge(int32_t left, int32_t right) const;
  void add_merge(Merge merge);
  void initial_tokens(std::string_view piece, std::vector<TokenSpan>& out) const;
  void merge_short(std::vector<TokenSpan>& tokens, size_t first) const;
  void merge_long(std::vector<TokenSpan>& tokens, size_t first) const;
  void merge_parts(std::string_view piece, std::vector<TokenSpan>& tokens, size_t first) const;
  void merge_tokens(std::string_view piece, std::vector<TokenSpan>& out) const;

  bool byte_level_, byte_fallback_, fuse_unknown_, ignore_merges_;
  int32_t unknown_id_ = -1;
  std::string prefix_, suffix_;         // continuing_subword_prefix, end_of_word_suffix
  Vocabulary vocabulary_;               // as written in the file
  Vocabulary pieces_;                   // text of a piece -> the one token that the merges make of it
  std::vector<int32_t> byte_ids_;       // [256] byte level: of the byte's character; else of <0xXX>; -1: none
  std::vector<int32_t> character_ids_;  // [128, or 65536 where pieces are characters] of single ones; -1: none
  std::vector<bool> joints_;            // by hash: pairs of initial tokens that some merge could bring together
  std::vector<Merge> merges_;           // open addressing, power of two
};

}  // namespace troupe
