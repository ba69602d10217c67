// The printable character that stands for each byte in byte-level vocabularies (Radford et al. 2019): printable Latin-1
// bytes stand for themselves, the others for the code points from U+0100 on.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace troupe {

/// UTF-8 text of the character for each byte.
const std::array<std::string, 256>& byte_alphabet();
/// The bytes that a token of a byte-level vocabulary stands for; none where a character is not of the alphabet.
std::optional<std::string> from_byte_alphabet(std::string_view token);
std::string to_byte_alphabet(std::string_view bytes);

}  // namespace troupe
