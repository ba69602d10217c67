// Text to token ids and back, as Hugging Face's tokenizer.json describes it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// Added tokens are recognised in the text; `add_special_tokens` applies the post-processor (BOS and the like).
  virtual std::vector<int32_t> encode(std::string_view text, bool add_special_tokens) const = 0;
  virtual std::string decode(const std::vector<int32_t>& ids, bool skip_special_tokens) const = 0;
  virtual int64_t vocab_size() const = 0;  // highest id + 1
  /// Id of a token's exact text, or -1.
  virtual int32_t token_id(std::string_view token) const = 0;
  virtual bool is_special(int32_t id) const = 0;
  /// The bytes that this token adds to the text (for incremental decoding of byte-level vocabularies).
  virtual std::string token_bytes(int32_t id) const = 0;
};

/// Throws Error naming the construct that is not supported.
std::unique_ptr<Tokenizer> parse_tokenizer(std::string_view tokenizer_json);

/// Streams text: gives out whole characters only, keeps the bytes of a half one until it is complete.
class IncrementalDecoder {
 public:
  IncrementalDecoder(const Tokenizer& tokenizer, bool skip_special_tokens);
  std::string push(int32_t id);
  /// What is left at the end; incomplete characters become U+FFFD.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_tokens_;
  std::vector<int32_t> ids_;
  size_t given_bytes_ = 0;
};

}  // namespace troupe
