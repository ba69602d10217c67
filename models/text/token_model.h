// The model of a tokenizer.json: what turns one piece of text into token ids. One class for each published kind.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace troupe {

/// Lets maps keyed by std::string be asked with views.
struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};
using Vocabulary = std::unordered_map<std::string, int32_t, StringHash, std::equal_to<>>;

/// A token and how many bytes of its piece it covers.
struct TokenSpan {
  int32_t id = 0;
  uint32_t num_bytes = 0;
};

class TokenModel {
 public:
  virtual ~TokenModel() = default;
  /// Appends the tokens of one piece. Thread-safe.
  virtual void encode(std::string_view piece, std::vector<TokenSpan>& out) const = 0;
  virtual const Vocabulary& vocabulary() const = 0;
};

/// BPE, Unigram, WordPiece or WordLevel. `byte_level`: pieces come as raw bytes and the vocabulary is written in the
/// byte alphabet (models/text/byte_alphabet.h). Throws Error naming the kind that is not known, or what is wrong.
std::unique_ptr<TokenModel> parse_token_model(const nlohmann::json& json, bool byte_level);

/// The vocabulary of BPE, WordPiece and WordLevel: an object from token to id.
Vocabulary parse_vocabulary(const nlohmann::json& json);
/// "<0x41>": the token that stands for a byte where the vocabulary has no character of it.
std::string byte_fallback_token(unsigned byte);

}  // namespace troupe
