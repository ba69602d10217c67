// Added tokens of tokenizer.json: texts that are recognised before (or after) normalisation, whatever the merges say.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/text/regex.h"

namespace troupe {

struct AddedToken {
  int32_t id = -1;
  std::string content;
  bool single_word = false;  // only where no word character stands beside it
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // and after it
  bool normalized = false;   // is looked for in the normalised text
  bool special = false;      // left out by decode(skip_special_tokens)
};

/// Where a text is cut: `id` is that of an added token, or -1 for text in between.
struct AddedTokenPart {
  Span span;
  int32_t id = -1;
};

/// Finds tokens leftmost first, longest first at one place.
class AddedTokenFinder {
 public:
  /// `content` is what is looked for (the normalised content where that applies).
  void add(const std::string& content, const AddedToken& token);
  bool empty() const { return nodes_.size() <= 1; }
  /// Cuts the text; parts come in order, without empty ones.
  void split(std::string_view text, std::vector<AddedTokenPart>& parts) const;

 private:
  struct Node {
    std::vector<std::pair<char, uint32_t>> children;
    int32_t token = -1;  // index in tokens_
  };
  std::vector<Node> nodes_{1};
  std::vector<AddedToken> tokens_;
  bool starts_[256] = {};
};

}  // namespace troupe
