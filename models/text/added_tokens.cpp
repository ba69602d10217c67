// A trie over the contents of the added tokens.
#include "models/text/added_tokens.h"

#include <algorithm>

#include "models/text/unicode.h"

namespace troupe {
namespace {

/// Rust's word characters.
bool is_word_or_joiner(char32_t c) { return is_word(c) || c == 0x200C || c == 0x200D; }

char32_t code_point_before(std::string_view text, size_t end) {
  size_t begin = end - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return next_code_point(text, begin);
}

}  // namespace

void AddedTokenFinder::add(const std::string& content, const AddedToken& token) {
  if (content.empty()) return;
  uint32_t node = 0;
  for (const char c : content) {
    auto& children = nodes_[node].children;
    const auto found =
        std::find_if(children.begin(), children.end(), [&](const auto& child) { return child.first == c; });
    if (found != children.end()) {
      node = found->second;
    } else {
      const auto made = static_cast<uint32_t>(nodes_.size());
      children.emplace_back(c, made);
      nodes_.emplace_back();
      node = made;
    }
  }
  starts_[static_cast<unsigned char>(content[0])] = true;
  nodes_[node].token = static_cast<int32_t>(tokens_.size());
  tokens_.push_back(token);
}

void AddedTokenFinder::split(std::string_view text, std::vector<AddedTokenPart>& parts) const {
  parts.clear();
  size_t given = 0;  // everything before it is in `parts`
  for (size_t at = 0; at < text.size();) {
    if (!starts_[static_cast<unsigned char>(text[at])]) {
      ++at;
      continue;
    }
    int32_t best = -1;
    size_t best_end = at;
    uint32_t node = 0;
    for (size_t i = at; i < text.size(); ++i) {
      const auto& children = nodes_[node].children;
      const auto found =
          std::find_if(children.begin(), children.end(), [&](const auto& child) { return child.first == text[i]; });
      if (found == children.end()) break;
      node = found->second;
      if (nodes_[node].token >= 0) {
        best = nodes_[node].token;
        best_end = i + 1;
      }
    }
    if (best < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(best)];
    size_t begin = at, end = best_end;
    at = best_end;
    if (token.single_word) {
      size_t after = end;
      if ((begin > 0 && is_word_or_joiner(code_point_before(text, begin))) ||
          (end < text.size() && is_word_or_joiner(next_code_point(text, after)))) {
        continue;
      }
    }
    if (token.lstrip) {
      while (begin > given && is_white_space(code_point_before(text, begin))) {
        --begin;
        while (begin > given && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
      }
    }
    if (token.rstrip) {
      for (size_t next = end; next < text.size(); end = next) {
        if (!is_white_space(next_code_point(text, next))) break;
      }
    }
    if (begin < given) begin = given;  // the token before took this one's white space along
    if (end <= given) continue;
    if (given < begin) parts.push_back({{given, begin}, -1});
    parts.push_back({{begin, end}, token.id});
    given = end;
  }
  if (given < text.size()) parts.push_back({{given, text.size()}, -1});
}

}  // namespace troupe
