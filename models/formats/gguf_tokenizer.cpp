#include "models/formats/gguf_tokenizer.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "models/formats/gguf_pre_tokenizer.h"

namespace troupe {
namespace {

using nlohmann::json;

/// Text of the token that a metadata key points to, nullopt where the key is absent or points nowhere.
std::optional<std::string> special_token(const GgufHeader& header, const std::vector<std::string_view>& tokens,
                                         const char* key) {
  if (!header.contains(key)) return std::nullopt;
  const auto id = header.integer(key);
  if (id < 0 || static_cast<size_t>(id) >= tokens.size()) return std::nullopt;
  return std::string(tokens[static_cast<size_t>(id)]);
}

// Kinds of tokens, numbered as in the file. Unused ones pad the embedding table and are in no published vocabulary.
constexpr int64_t kNormalToken = 1, kUnknownToken = 2, kControlToken = 3, kUserDefinedToken = 4, kUnusedToken = 5;

/// Tokens with their kinds, checked; the vocabulary and the added tokens of a tokenizer.json.
struct Vocabulary {
  std::vector<std::string_view> tokens;
  std::vector<int64_t> kinds;
  json ids = json::object();
  json added = json::array();
};

Vocabulary read_vocabulary(const GgufHeader& header) {
  Vocabulary result{header.texts("tokenizer.ggml.tokens"), header.integers("tokenizer.ggml.token_type")};
  if (result.kinds.empty()) result.kinds.assign(result.tokens.size(), kNormalToken);
  require(result.kinds.size() == result.tokens.size(), header.path, ": tokenizer.ggml.token_type has ",
          result.kinds.size(), " elements for ", result.tokens.size(), " tokens");
  for (size_t id = 0; id < result.tokens.size(); ++id) {
    const auto kind = result.kinds[id];
    if (kind == kUnusedToken) continue;
    const std::string text(result.tokens[id]);
    result.ids[text] = id;
    if (kind != kControlToken && kind != kUserDefinedToken && kind != kUnknownToken) continue;
    result.added.push_back({{"id", id},
                            {"content", text},
                            {"single_word", false},
                            {"lstrip", false},
                            {"rstrip", false},
                            {"normalized", false},
                            {"special", kind != kUserDefinedToken}});
  }
  return result;
}

json byte_pair_model(json vocabulary, json merges) {
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"ignore_merges", false},
          {"vocab", std::move(vocabulary)},
          {"merges", std::move(merges)}};
}

/// GPT-2's byte-level kind: merges are listed.
json byte_level_parts(const GgufHeader& header, Vocabulary& vocabulary) {
  const auto& scheme = find_gguf_pre_tokenizer(header.text("tokenizer.ggml.pre", "gpt-2"), header.path);
  auto merges = json::array();
  for (const auto merge : header.texts("tokenizer.ggml.merges")) {
    const auto space = merge.find(' ', 1);  // a merge's left side is never empty
    require(space != std::string_view::npos, header.path, ": tokenizer.ggml.merges: \"", merge, "\" is not a pair");
    merges.push_back({merge.substr(0, space), merge.substr(space + 1)});
  }
  auto model = byte_pair_model(std::move(vocabulary.ids), std::move(merges));
  model["ignore_merges"] = scheme.ignore_merges;
  return {{"normalizer", scheme.nfc ? json{{"type", "NFC"}} : json()},
          {"pre_tokenizer", pre_tokenizer_json(scheme, header.boolean("tokenizer.ggml.add_space_prefix", false))},
          {"decoder", byte_level_json(true, true)},
          {"model", std::move(model)}};
}

/// SentencePiece's BPE joins the neighbours whose union scores highest: as a list, every split of every token into two
/// others, best score first.
json merges_by_score(const Vocabulary& vocabulary, const std::vector<double>& scores, const std::string& path) {
  constexpr size_t kLongestPiece = 256;  // bytes; bounds the work that a crafted file can ask for
  struct Merge {
    std::string_view left, right;
    double score;
    size_t num_left, num_right;  // characters
  };
  std::unordered_map<std::string_view, size_t> ids;
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (vocabulary.kinds[id] == kNormalToken || vocabulary.kinds[id] == kUserDefinedToken)
      ids.emplace(vocabulary.tokens[id], id);
  }
  const auto count_characters = [](std::string_view text) {
    return static_cast<size_t>(
        std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xc0) != 0x80; }));
  };
  std::vector<Merge> merges;
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (vocabulary.kinds[id] != kNormalToken) continue;
    const auto token = vocabulary.tokens[id];
    require(token.size() <= kLongestPiece, path, ": tokenizer.ggml.tokens: token ", id, " is longer than ",
            kLongestPiece, " bytes");
    for (size_t split = 1; split < token.size(); ++split) {
      const auto left = token.substr(0, split), right = token.substr(split);
      if ((right.front() & 0xc0) == 0x80 || !ids.contains(left) || !ids.contains(right)) continue;
      merges.push_back({left, right, scores[id], count_characters(left), count_characters(right)});
    }
  }
  std::stable_sort(merges.begin(), merges.end(), [](const Merge& a, const Merge& b) {
    return std::tuple(a.score, a.num_left, a.num_right) > std::tuple(b.score, b.num_left, b.num_right);
  });
  auto result = json::array();
  for (const auto& merge : merges) result.push_back({merge.left, merge.right});
  return result;
}

/// SentencePiece's kind: spaces as U+2581, bytes for what has no token.
json sentencepiece_parts(const GgufHeader& header, Vocabulary& vocabulary) {
  static const std::string kSpace = "\xe2\x96\x81";
  const auto scores = header.numbers("tokenizer.ggml.scores");
  require(scores.size() == vocabulary.tokens.size(), header.path, ": tokenizer.ggml.scores has ", scores.size(),
          " elements for ", vocabulary.tokens.size(), " tokens");
  require(std::none_of(scores.begin(), scores.end(), [](double score) { return std::isnan(score); }), header.path,
          ": tokenizer.ggml.scores holds a score that is not a number");
  auto model = byte_pair_model(std::move(vocabulary.ids), merges_by_score(vocabulary, scores, header.path));
  model["fuse_unk"] = true;
  model["byte_fallback"] = true;
  const auto unknown = special_token(header, vocabulary.tokens, "tokenizer.ggml.unknown_token_id");
  if (unknown.has_value()) model["unk_token"] = *unknown;
  const bool prefixed = header.boolean("tokenizer.ggml.add_space_prefix", true);
  const json to_mark = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpace}};
  json normalizers = json::array(), decoders = json::array();
  if (prefixed) normalizers.push_back({{"type", "Prepend"}, {"prepend", kSpace}});
  normalizers.push_back(to_mark);
  decoders.push_back({{"type", "Replace"}, {"pattern", {{"String", kSpace}}}, {"content", " "}});
  decoders.push_back({{"type", "ByteFallback"}});
  decoders.push_back({{"type", "Fuse"}});
  if (prefixed) decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  return {{"normalizer", {{"type", "Sequence"}, {"normalizers", std::move(normalizers)}}},
          {"pre_tokenizer", nullptr},
          {"decoder", {{"type", "Sequence"}, {"decoders", std::move(decoders)}}},
          {"model", std::move(model)}};
}

/// Puts `bos` before the text (and before the second of a pair).
json begin_template(const std::string& bos, int64_t id) {
  const auto special = [&](int type) { return json{{"SpecialToken", {{"id", bos}, {"type_id", type}}}}; };
  const json first = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const json second = {{"Sequence", {{"id", "B"}, {"type_id", 1}}}};
  auto specials = json::object();
  specials[bos] = {{"id", bos}, {"ids", {id}}, {"tokens", {bos}}};
  return {{"type", "TemplateProcessing"},
          {"single", {special(0), first}},
          {"pair", {special(0), first, special(1), second}},
          {"special_tokens", std::move(specials)}};
}

}  // namespace

std::string gguf_tokenizer_json(const GgufHeader& header) {
  auto vocabulary = read_vocabulary(header);
  if (vocabulary.tokens.empty()) return "";
  const auto kind = header.text("tokenizer.ggml.model");
  require(kind == "gpt2" || kind == "llama", header.path, ": tokenizer.ggml.model = \"", kind,
          "\" is not supported; supported are gpt2 and llama");
  const bool is_sentencepiece = kind == "llama";
  json result = {{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}, {"post_processor", nullptr}};
  try {
    result["added_tokens"] = std::move(vocabulary.added);
    result.update(is_sentencepiece ? sentencepiece_parts(header, vocabulary) : byte_level_parts(header, vocabulary));
    const auto bos = special_token(header, vocabulary.tokens, "tokenizer.ggml.bos_token_id");
    if (bos.has_value() && header.boolean("tokenizer.ggml.add_bos_token", is_sentencepiece)) {
      result["post_processor"] = begin_template(*bos, header.integer("tokenizer.ggml.bos_token_id"));
    }
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
