// Regular expressions over UTF-8 with bounded work. PCRE2 stays behind this header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

/// Byte range [begin, end) in a text.
struct Span {
  size_t begin = 0, end = 0;
  bool operator==(const Span&) const = default;
};

struct RegexOptions {
  bool multi_line = false;  // ^ and $ also at line ends
  bool dot_all = false;     // . also matches line ends
  bool ignore_case = false;
  uint32_t match_limit = 10000000;  // steps of one match before it counts as failed (an Error, never a hang)
};

class Regex {
 public:
  /// Compiles PCRE syntax. Throws Error with pattern, place and reason.
  explicit Regex(const std::string& pattern, const RegexOptions& options = {});
  ~Regex();
  Regex(Regex&&) noexcept;

  /// First match that starts at or after `from`: true and the spans of group 0, 1, ... ({npos, npos} where a group took
  /// no part). The text must be valid UTF-8. Throws Error where the match limit is reached. Thread-safe.
  bool search(std::string_view text, size_t from, std::vector<Span>& groups) const;
  /// Every non-empty match from left to right, without overlap; with `keep_empty` also the empty ones that do not lie
  /// right behind another. Thread-safe.
  void find_all(std::string_view text, std::vector<Span>& matches, bool keep_empty = false) const;
  size_t num_groups() const;

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

/// The pattern of a tokenizer file (Oniguruma's Ruby syntax or Rust's) in PCRE2's: white space and words by the Unicode
/// properties, scripts without their extensions, class intersections.
std::string pcre_pattern(std::string_view pattern);

}  // namespace troupe
