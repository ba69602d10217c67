// Base64 (RFC 4648), as tokenizer files use it.
#pragma once

#include <string>
#include <string_view>

namespace troupe {

/// False where `text` is no base64. Padding may be missing.
bool decode_base64(std::string_view text, std::string& bytes);
std::string encode_base64(std::string_view bytes);

}  // namespace troupe
