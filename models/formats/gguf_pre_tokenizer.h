// How text is cut before merges, by the names that GGUF files carry in `tokenizer.ggml.pre`. No torch.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace troupe {

/// What a vocabulary's tokens are written in.
enum class GgufAlphabet {
  kBytes,       // GPT-2's: each byte a printable character
  kSpaceMarks,  // characters, spaces as U+2581, and bytes as <0xXX> for what has no token
  kWords        // characters; white space only parts words
};

/// One published scheme: regular expressions (Oniguruma syntax) that cut one after the other, each match a piece.
struct GgufPreTokenizer {
  std::vector<const char*> names = {};  // values of tokenizer.ggml.pre
  std::vector<const char*> patterns = {};
  bool nfc = false;
  bool ignore_merges = false;
  bool add_bos = false;  // where the file does not say
  GgufAlphabet alphabet = GgufAlphabet::kBytes;
};

/// Throws Error, beginning with `path`, that lists the known names.
const GgufPreTokenizer& find_gguf_pre_tokenizer(const std::string& name, const std::string& path);
/// The pre-tokenizer of a tokenizer.json.
nlohmann::json pre_tokenizer_json(const GgufPreTokenizer& scheme, bool add_prefix_space);
nlohmann::json byte_level_json(bool add_prefix_space, bool use_regex);

}  // namespace troupe
