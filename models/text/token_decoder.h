// Decoders of tokenizer.json: from tokens as the vocabulary writes them back to text.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

/// One step: turns a list of tokens into another one whose concatenation is the text.
class TokenDecoder {
 public:
  virtual ~TokenDecoder() = default;
  virtual void apply(std::vector<std::string>& tokens) const = 0;
  /// The same for one token in the middle of a text, in bytes that need not be whole characters.
  virtual std::string token_bytes(std::string token) const = 0;
  /// And for the first one of a text.
  virtual std::string first_token_bytes(std::string token) const { return token_bytes(std::move(token)); }
  /// Spaces that it takes from the very beginning of the text, after that.
  virtual size_t num_leading_spaces_removed() const { return 0; }
};

/// Null for a JSON null. Throws Error naming a type that is not known.
std::unique_ptr<TokenDecoder> parse_token_decoder(const nlohmann::json& json);

}  // namespace troupe
