#include "models/text/tiktoken.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "base/error.h"
#include "models/text/base64.h"
#include "models/text/byte_alphabet.h"

namespace troupe {
namespace {

using nlohmann::json;

struct Line {
  std::string bytes;
  int32_t rank = 0;
};

/// Reads the line that begins at `at`, which moves behind it; false where it is not a token and its rank.
bool read_line(std::string_view file, size_t& at, Line& line) {
  const size_t end = std::min(file.find('\n', at), file.size());
  auto text = file.substr(at, end - at);
  at = end + 1;
  if (text.ends_with('\r')) text.remove_suffix(1);
  const size_t space = text.find(' ');
  if (space == text.npos || !decode_base64(text.substr(0, space), line.bytes)) return false;
  if (line.bytes.empty()) return false;
  const auto number = text.substr(space + 1);
  const auto [stop, error] = std::from_chars(number.data(), number.data() + number.size(), line.rank);
  return error == std::errc() && stop == number.data() + number.size() && line.rank >= 0;
}

struct Scheme {
  std::vector<const char*> names;
  const char* pattern;
  bool nfc;
};

// As the models' own code and the published tokenizer.json files have them.
const Scheme& find_scheme(const std::string& name) {
  static const std::vector<Scheme> known = {
      {{"tokenizer.model"},  // Llama 3
       R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
       false},
      {{"qwen.tiktoken"},
       R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
       true},
      {{"tiktoken.model"},  // Kimi, Moonlight
       R"([\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
       false},
      {{"cl100k_base.tiktoken"},
       R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s)",
       false},
      {{"o200k_base.tiktoken", "o200k_harmony.tiktoken"},
       R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
       false},
      {{"r50k_base.tiktoken", "p50k_base.tiktoken", "gpt2.tiktoken"},
       R"('(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s)",
       false},
  };
  std::string names;
  for (const auto& scheme : known) {
    for (const auto* own : scheme.names) {
      if (name == own) return scheme;
      names += concat(names.empty() ? "" : ", ", own);
    }
  }
  fail(name, ": the regular expression of this tiktoken file is not known; known are ", names);
}

/// The special tokens that a model's own code puts behind the file's.
std::vector<std::string> special_tokens_of(const std::string& name) {
  std::vector<std::string> tokens;
  const auto reserve = [&](const char* before, int first, size_t total, const char* after) {
    for (int i = first; tokens.size() < total; ++i) tokens.push_back(concat(before, i, after));
  };
  if (name == "tokenizer.model") {
    tokens = {"<|begin_of_text|>",
              "<|end_of_text|>",
              "<|reserved_special_token_0|>",
              "<|reserved_special_token_1|>",
              "<|finetune_right_pad_id|>",
              "<|reserved_special_token_2|>",
              "<|start_header_id|>",
              "<|end_header_id|>",
              "<|eom_id|>",
              "<|eot_id|>",
              "<|python_tag|>"};
    reserve("<|reserved_special_token_", 3, 256, "|>");
  } else if (name == "qwen.tiktoken") {
    tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    reserve("<|extra_", 0, 208, "|>");
  }
  return tokens;
}

}  // namespace

bool is_tiktoken(std::string_view file) {
  size_t at = 0;
  Line line;
  return !file.empty() && read_line(file, at, line);
}

json tiktoken_json(std::string_view file, const std::string& name, json added_tokens) {
  const Scheme& scheme = find_scheme(name);
  auto vocabulary = json::object();
  int32_t next_id = 0;
  size_t line_number = 0;
  Line line;
  for (size_t at = 0; at < file.size();) {
    ++line_number;
    require(read_line(file, at, line), name, ", line ", line_number, ": not a token in base64 and its rank");
    require(vocabulary.emplace(to_byte_alphabet(line.bytes), line.rank).second, name, ", line ", line_number,
            ": the token is given twice");
    next_id = std::max(next_id, line.rank + 1);
  }
  if (added_tokens.empty()) {
    added_tokens = json::array();
    for (const auto& token : special_tokens_of(name)) {
      added_tokens.push_back({{"id", next_id++}, {"content", token}, {"normalized", false}, {"special", true}});
    }
  }
  const json split = {{"type", "Split"}, {"pattern", {{"Regex", scheme.pattern}}}, {"behavior", "Isolated"}};
  const json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  return {
      {"added_tokens", std::move(added_tokens)},
      {"normalizer", scheme.nfc ? json{{"type", "NFC"}} : json()},
      {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, byte_level}}}},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", std::move(vocabulary)}, {"merge_by_rank", true}, {"ignore_merges", true}}}};
}

}  // namespace troupe
