// Tables of the byte alphabet, built once.
#include "models/text/byte_alphabet.h"

#include "models/text/unicode.h"

namespace troupe {
namespace {

bool stands_for_itself(int byte) { return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD); }

struct Tables {
  std::array<std::string, 256> characters;
  std::array<int, 0x144> bytes;  // by code point; -1: none
  Tables() {
    bytes.fill(-1);
    char32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const char32_t c = stands_for_itself(byte) ? static_cast<char32_t>(byte) : next++;
      append_utf8(characters[static_cast<size_t>(byte)], c);
      bytes[c] = byte;
    }
  }
};

const Tables& tables() {
  static const Tables instance;
  return instance;
}

}  // namespace

const std::array<std::string, 256>& byte_alphabet() { return tables().characters; }

std::optional<std::string> from_byte_alphabet(std::string_view token) {
  std::string out;
  for (size_t at = 0; at < token.size();) {
    const char32_t c = next_code_point(token, at);
    if (c >= tables().bytes.size() || tables().bytes[c] < 0) return std::nullopt;
    out += static_cast<char>(tables().bytes[c]);
  }
  return out;
}

std::string to_byte_alphabet(std::string_view bytes) {
  std::string out;
  for (const char byte : bytes) out += byte_alphabet()[static_cast<unsigned char>(byte)];
  return out;
}

}  // namespace troupe
