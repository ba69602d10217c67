#include "models/formats/gguf_tokenizer.h"

#include <optional>
#include <vector>

#include "base/error.h"

namespace troupe {
namespace {

using nlohmann::json;

/// How text is cut before byte-pair merging, by the name that llama.cpp gave each published scheme.
struct PreTokenizer {
  std::vector<const char*> names;  // values of tokenizer.ggml.pre
  bool individual_digits;          // digits one by one before all else
  const char* pattern;             // nullptr: GPT-2's own, built into ByteLevel
  bool nfc;
  bool ignore_merges;
};

const PreTokenizer& find_pre_tokenizer(const std::string& name, const std::string& path) {
  static const std::vector<PreTokenizer> known = {
      {{"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"},
       true,
       nullptr,
       false,
       false},
      {{"gpt-2", "phi-2", "jina-es", "jina-de", "roberta-bpe", "mpt", "olmo"}, false, nullptr, false, false},
      {{"llama-bpe", "llama3", "llama-v3", "falcon3", "smaug-bpe", "dbrx"},
       false,
       R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
       false,
       true},
      {{"qwen2", "deepseek-r1-qwen"},
       false,
       R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
       true,
       false},
  };
  std::string names;
  for (const auto& candidate : known) {
    for (const auto* own : candidate.names) {
      if (name == own) return candidate;
      names += concat(names.empty() ? "" : ", ", own);
    }
  }
  fail(path, ": tokenizer.ggml.pre = \"", name, "\" is not known; known are ", names);
}

json byte_level(bool add_prefix_space, bool use_regex) {
  return {
      {"type", "ByteLevel"}, {"add_prefix_space", add_prefix_space}, {"trim_offsets", true}, {"use_regex", use_regex}};
}

json pre_tokenizer_json(const PreTokenizer& scheme, bool add_prefix_space) {
  json steps = json::array();
  if (scheme.individual_digits) steps.push_back({{"type", "Digits"}, {"individual_digits", true}});
  if (scheme.pattern != nullptr) {
    steps.push_back(
        {{"type", "Split"}, {"pattern", {{"Regex", scheme.pattern}}}, {"behavior", "Isolated"}, {"invert", false}});
  }
  steps.push_back(byte_level(add_prefix_space, scheme.pattern == nullptr));
  if (steps.size() == 1) return steps.front();
  return {{"type", "Sequence"}, {"pretokenizers", steps}};
}

/// Text of the token that a metadata key points to, nullopt where the key is absent or points nowhere.
std::optional<std::string> special_token(const GgufHeader& header, const std::vector<std::string_view>& tokens,
                                         const char* key) {
  if (!header.contains(key)) return std::nullopt;
  const auto id = header.integer(key);
  if (id < 0 || static_cast<size_t>(id) >= tokens.size()) return std::nullopt;
  return std::string(tokens[static_cast<size_t>(id)]);
}

constexpr int64_t kControlToken = 3, kUserDefinedToken = 4, kUnusedToken = 5;

}  // namespace

std::string gguf_tokenizer_json(const GgufHeader& header) {
  const auto tokens = header.texts("tokenizer.ggml.tokens");
  if (tokens.empty()) return "";
  const auto kind = header.text("tokenizer.ggml.model");
  require(kind == "gpt2", header.path, ": tokenizer.ggml.model = \"", kind, "\" is not supported; supported is gpt2");
  const auto& scheme = find_pre_tokenizer(header.text("tokenizer.ggml.pre", "gpt-2"), header.path);
  const auto types = header.integers("tokenizer.ggml.token_type");
  require(types.empty() || types.size() == tokens.size(), header.path, ": tokenizer.ggml.token_type has ", types.size(),
          " elements for ", tokens.size(), " tokens");

  auto vocabulary = json::object();
  auto added = json::array();
  for (size_t id = 0; id < tokens.size(); ++id) {
    const auto type = types.empty() ? 1 : types[id];
    if (type == kUnusedToken) continue;  // padding of the embedding table, in no published vocabulary
    const std::string text(tokens[id]);
    vocabulary[text] = id;
    if (type != kControlToken && type != kUserDefinedToken) continue;
    added.push_back({{"id", id},
                     {"content", text},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", type == kControlToken}});
  }
  auto merges = json::array();
  for (const auto merge : header.texts("tokenizer.ggml.merges")) {
    const auto space = merge.find(' ', 1);  // a merge's left side is never empty
    require(space != std::string_view::npos, header.path, ": tokenizer.ggml.merges: \"", merge, "\" is not a pair");
    merges.push_back({merge.substr(0, space), merge.substr(space + 1)});
  }
  json result = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", added},
      {"normalizer", scheme.nfc ? json{{"type", "NFC"}} : json()},
      {"pre_tokenizer", pre_tokenizer_json(scheme, header.boolean("tokenizer.ggml.add_space_prefix", false))},
      {"post_processor", nullptr},
      {"decoder", byte_level(true, true)},
      {"model",
       {{"type", "BPE"},
        {"dropout", nullptr},
        {"unk_token", nullptr},
        {"continuing_subword_prefix", nullptr},
        {"end_of_word_suffix", nullptr},
        {"fuse_unk", false},
        {"byte_fallback", false},
        {"ignore_merges", scheme.ignore_merges},
        {"vocab", std::move(vocabulary)},
        {"merges", std::move(merges)}}}};
  const auto bos = special_token(header, tokens, "tokenizer.ggml.bos_token_id");
  if (bos.has_value() && header.boolean("tokenizer.ggml.add_bos_token", false)) {
    const json begin = {{"SpecialToken", {{"id", *bos}, {"type_id", 0}}}};
    const json first = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
    const json second = {{"Sequence", {{"id", "B"}, {"type_id", 1}}}};
    const json begin_second = {{"SpecialToken", {{"id", *bos}, {"type_id", 1}}}};
    json specials = json::object();
    specials[*bos] = {{"id", *bos}, {"ids", {header.integer("tokenizer.ggml.bos_token_id")}}, {"tokens", {*bos}}};
    result["post_processor"] = {{"type", "TemplateProcessing"},
                                {"single", {begin, first}},
                                {"pair", {begin, first, begin_second, second}},
                                {"special_tokens", specials}};
  }
  try {
    return result.dump();
  } catch (const json::exception&) {
    fail(header.path, ": a token or merge of the tokenizer is not valid UTF-8");
  }
}

json gguf_tokenizer_config(const GgufHeader& header) {
  json result = {{"tokenizer_class", "PreTrainedTokenizerFast"}, {"clean_up_tokenization_spaces", false}};
  const auto tokens = header.texts("tokenizer.ggml.tokens");
  for (const auto& [name, key] :
       {std::pair("bos_token", "tokenizer.ggml.bos_token_id"), std::pair("eos_token", "tokenizer.ggml.eos_token_id"),
        std::pair("unk_token", "tokenizer.ggml.unknown_token_id"),
        std::pair("pad_token", "tokenizer.ggml.padding_token_id")}) {
    if (const auto text = special_token(header, tokens, key)) result[name] = *text;
  }
  if (header.contains("tokenizer.ggml.add_bos_token")) {
    result["add_bos_token"] = header.boolean("tokenizer.ggml.add_bos_token", false);
  }
  if (header.contains("tokenizer.chat_template")) result["chat_template"] = header.text("tokenizer.chat_template");
  return result;
}

}  // namespace troupe
