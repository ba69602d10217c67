// UTF-8 and the Unicode properties that tokenizers and templates ask for. Normalisation forms come from utf8proc;
// nothing here knows tokens or templates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

/// Code point at `position`, which moves behind it. The text must be valid UTF-8 (see repair_utf8) and position inside
/// it.
inline char32_t next_code_point(std::string_view text, size_t& position) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(text[i])); };
  const uint32_t first = byte(position);
  if (first < 0x80) return static_cast<char32_t>(position += 1, first);
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  uint32_t value = first & (0xFFu >> (length + 1));
  for (size_t i = 1; i < length; ++i) value = value << 6 | (byte(position + i) & 0x3F);
  position += length;
  return static_cast<char32_t>(value);
}

/// Length in bytes of the character whose first byte is `first` (valid UTF-8).
inline size_t utf8_width(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte < 0x80 ? 1 : byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : 2;
}

void append_utf8(std::string& out, char32_t code_point);
std::string to_utf8(const std::u32string& code_points);
std::u32string to_code_points(std::string_view text);
/// Number of code points of valid UTF-8.
size_t num_code_points(std::string_view text);
bool is_valid_utf8(std::string_view text);
/// Invalid bytes become U+FFFD, one for each maximal part of a character (Unicode 3.9, as Rust and Python's "replace"
/// do).
std::string repair_utf8(std::string_view text);
/// Length of the longest prefix that does not end inside a character; invalid bytes count as complete.
size_t complete_utf8_prefix(std::string_view text);

bool is_white_space(char32_t c);      // the White_Space property: U+0085 and the typographic spaces included
bool is_numeric(char32_t c);          // categories Nd, Nl, No
bool is_letter(char32_t c);           // categories L*
bool is_punctuation(char32_t c);      // categories P*, and the ASCII symbols
bool is_word(char32_t c);             // regular expressions' \w: Alphabetic, M*, Nd, Pc
bool is_mark(char32_t c);             // categories M*
bool is_nonspacing_mark(char32_t c);  // category Mn
bool is_other(char32_t c);            // categories Cc, Cf, Co: controls, formats, private use
bool is_upper(char32_t c);
bool is_lower(char32_t c);
char32_t to_upper(char32_t c);  // simple mapping
char32_t to_lower(char32_t c);
char32_t to_title(char32_t c);
/// Full upper and lower case of one character (U+00DF gives "SS", U+0130 gives "i" and a dot above).
void append_upper(std::string& out, char32_t c);
void append_lower(std::string& out, char32_t c);

/// End of the grapheme cluster that begins at `position` (valid UTF-8, position inside it).
size_t next_grapheme(std::string_view text, size_t position);

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };
std::string normalize_unicode(std::string_view text, NormalForm form);
/// True where nothing before `c` can compose with it or be reordered: text may be normalised piece by piece from here.
bool is_normalization_boundary(char32_t c);

}  // namespace troupe
