// Streaming of text (B068): a character may lie over several tokens.
#include "models/text/tokenizer.h"
#include "models/text/unicode.h"

namespace troupe {

IncrementalDecoder::IncrementalDecoder(const Tokenizer& tokenizer, bool skip_special_tokens)
    : tokenizer_(tokenizer),
      skip_special_tokens_(skip_special_tokens),
      leading_spaces_(tokenizer.num_leading_spaces_removed()) {}

std::string IncrementalDecoder::push(int32_t id) {
  if (skip_special_tokens_ && tokenizer_.is_special(id)) return {};
  pending_ += at_start_ ? tokenizer_.first_token_bytes(id) : tokenizer_.token_bytes(id);
  at_start_ = false;
  while (leading_spaces_ > 0 && !pending_.empty()) {
    if (pending_.front() != ' ') {
      leading_spaces_ = 0;
    } else {
      pending_.erase(0, 1);
      --leading_spaces_;
    }
  }
  const size_t complete = complete_utf8_prefix(pending_);
  std::string chunk = repair_utf8(std::string_view(pending_).substr(0, complete));
  pending_.erase(0, complete);
  return chunk;
}

std::string IncrementalDecoder::finish() {
  std::string rest = repair_utf8(pending_);
  pending_.clear();
  return rest;
}

}  // namespace troupe
