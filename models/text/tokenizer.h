// Text to token ids and back, as Hugging Face's tokenizer.json describes it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "models/text/regex.h"

namespace troupe {

/// Ids with the bytes of the user's text that each stands for; tokens that a post-processor adds have empty spans.
struct Encoding {
  std::vector<int32_t> ids;
  std::vector<Span> spans;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// Added tokens are recognised in the text; `add_special_tokens` applies the post-processor (BOS and the like). Bytes
  /// that are no UTF-8 count as U+FFFD.
  virtual std::vector<int32_t> encode(std::string_view text, bool add_special_tokens) const = 0;
  /// The same ids with their places in the text. Throws Error where the tokenizer cannot say.
  virtual Encoding encode_with_spans(std::string_view text, bool add_special_tokens) const;
  virtual std::string decode(const std::vector<int32_t>& ids, bool skip_special_tokens) const = 0;
  virtual int64_t vocab_size() const = 0;  // highest id + 1
  /// Id of a token's exact text, or -1.
  virtual int32_t token_id(std::string_view token) const = 0;
  virtual bool is_special(int32_t id) const = 0;
  /// The bytes that this token adds in the middle of a text (for incremental decoding of byte-level vocabularies); ""
  /// for ids without a token.
  virtual std::string token_bytes(int32_t id) const = 0;
  /// And at the beginning of one, where some decoders drop marks of spaces.
  virtual std::string first_token_bytes(int32_t id) const { return token_bytes(id); }
  /// Spaces that decoding takes from the beginning of a text (SentencePiece's dummy prefix).
  virtual size_t num_leading_spaces_removed() const { return 0; }
};

/// Throws Error naming the construct that is not supported or the entry that is wrong.
std::unique_ptr<Tokenizer> parse_tokenizer(std::string_view tokenizer_json);

/// Streams text: gives out whole characters only, keeps the bytes of a half one until it is complete. The chunks joined
/// equal the whole decoding; only for byte-fallback vocabularies, whose reference replaces every byte of a run that
/// holds an invalid one, they differ after characters that were given out already.
class IncrementalDecoder {
 public:
  IncrementalDecoder(const Tokenizer& tokenizer, bool skip_special_tokens);
  std::string push(int32_t id);
  /// What is left at the end; incomplete characters become U+FFFD.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_tokens_;
  bool at_start_ = true;
  std::string pending_;
  size_t leading_spaces_;
};

}  // namespace troupe
