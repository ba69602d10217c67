#include "models/formats/gguf_tokenizer_models.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <unordered_map>

#include "base/error.h"
#include "models/text/base64.h"

namespace troupe {
namespace {

using nlohmann::json;

const std::string kSpaceMark = "\xe2\x96\x81";
constexpr const char* kUnknownKey = "tokenizer.ggml.unknown_token_id";
constexpr const char* kLowercaseKey = "tokenizer.ggml.normalizer.lowercase";
constexpr int64_t kBertUnknown = 100, kT5Unknown = 2;  // ids that llama.cpp takes where the file names none

// Kinds of tokens, numbered as in the file. Unused ones pad the embedding table and are in no published vocabulary.
constexpr int64_t kNormalToken = 1, kUnknownToken = 2, kControlToken = 3, kUserDefinedToken = 4, kUnusedToken = 5;

std::vector<double> read_scores(const GgufHeader& header, const GgufVocabulary& vocabulary) {
  auto scores = header.numbers("tokenizer.ggml.scores");
  require(scores.size() == vocabulary.tokens.size(), header.path, ": tokenizer.ggml.scores has ", scores.size(),
          " elements for ", vocabulary.tokens.size(), " tokens");
  require(std::none_of(scores.begin(), scores.end(), [](double score) { return std::isnan(score); }), header.path,
          ": tokenizer.ggml.scores holds a score that is not a number");
  return scores;
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

/// Pairs "left right"; Kimi's files leave them out, since their ids are the ranks.
json listed_merges(const GgufHeader& header, bool may_lack) {
  constexpr const char* kKey = "tokenizer.ggml.merges";
  require(may_lack || header.contains(kKey), header.path, ": ", kKey, " is missing");
  auto merges = json::array();
  for (const auto merge : header.texts(kKey)) {
    const auto space = merge.find(' ', 1);  // a merge's left side is never empty
    require(space != std::string_view::npos, header.path, ": ", kKey, ": \"", merge, "\" is not a pair");
    merges.push_back({merge.substr(0, space), merge.substr(space + 1)});
  }
  return merges;
}

/// Spaces as U+2581 and bytes for what has no token: what goes before and what comes after the model.
json space_marks_to_text(bool strip_first) {
  auto decoders = json::array({{{"type", "Replace"}, {"pattern", {{"String", kSpaceMark}}}, {"content", " "}},
                               {{"type", "ByteFallback"}},
                               {{"type", "Fuse"}}});
  if (strip_first) decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  return {{"type", "Sequence"}, {"decoders", std::move(decoders)}};
}
json text_to_space_marks() { return {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpaceMark}}; }

/// SentencePiece's BPE joins the neighbours whose union scores highest: as a list, every split of every token into two
/// others, best score first.
json merges_by_score(const GgufVocabulary& vocabulary, const std::vector<double>& scores, const std::string& path) {
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

}  // namespace

std::optional<std::string> gguf_special_token(const GgufHeader& header, const std::vector<std::string_view>& tokens,
                                              const char* key, int64_t fallback) {
  const auto id = header.integer(key, fallback);
  if (id < 0 || static_cast<size_t>(id) >= tokens.size()) return std::nullopt;
  return std::string(tokens[static_cast<size_t>(id)]);
}

GgufVocabulary read_gguf_vocabulary(const GgufHeader& header) {
  GgufVocabulary result{header.texts("tokenizer.ggml.tokens"), header.integers("tokenizer.ggml.token_type")};
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

/// BPE with listed merges, over bytes (GPT-2's kind) or characters.
json byte_pair_parts(const GgufHeader& header, const GgufPreTokenizer& scheme, GgufVocabulary& vocabulary) {
  const bool by_rank = scheme.names.front() == std::string_view("kimi-k2") && !header.contains("tokenizer.ggml.merges");
  auto model = byte_pair_model(std::move(vocabulary.ids), listed_merges(header, by_rank));
  model["ignore_merges"] = scheme.ignore_merges;
  if (by_rank) model["merge_by_rank"] = true;
  json normalizer, decoder = byte_level_json(true, true);
  if (scheme.nfc) normalizer = {{"type", "NFC"}};
  if (scheme.alphabet == GgufAlphabet::kSpaceMarks) {
    normalizer = text_to_space_marks();
    decoder = space_marks_to_text(false);
    model["byte_fallback"] = true;
    model["fuse_unk"] = true;
    if (const auto unknown = gguf_special_token(header, vocabulary.tokens, kUnknownKey)) model["unk_token"] = *unknown;
  } else if (scheme.alphabet == GgufAlphabet::kWords) {
    if (header.boolean(kLowercaseKey, false)) normalizer = {{"type", "Lowercase"}};
    decoder = nullptr;
  }
  return {{"normalizer", std::move(normalizer)},
          {"pre_tokenizer", pre_tokenizer_json(scheme, header.boolean("tokenizer.ggml.add_space_prefix", false))},
          {"decoder", std::move(decoder)},
          {"model", std::move(model)}};
}

/// SentencePiece's kind: spaces as U+2581, bytes for what has no token.
json sentencepiece_parts(const GgufHeader& header, GgufVocabulary& vocabulary) {
  const auto scores = read_scores(header, vocabulary);
  auto model = byte_pair_model(std::move(vocabulary.ids), merges_by_score(vocabulary, scores, header.path));
  model["fuse_unk"] = true;
  model["byte_fallback"] = true;
  if (const auto unknown = gguf_special_token(header, vocabulary.tokens, kUnknownKey)) model["unk_token"] = *unknown;
  const bool prefixed = header.boolean("tokenizer.ggml.add_space_prefix", true);
  json normalizers = json::array();
  if (prefixed) normalizers.push_back({{"type", "Prepend"}, {"prepend", kSpaceMark}});
  normalizers.push_back(text_to_space_marks());
  return {{"normalizer", {{"type", "Sequence"}, {"normalizers", std::move(normalizers)}}},
          {"pre_tokenizer", nullptr},
          {"decoder", space_marks_to_text(prefixed)},
          {"model", std::move(model)}};
}

/// BERT's kind: beginnings of words are marked with U+2581, which its own files do the other way round.
json word_piece_parts(const GgufHeader& header, const GgufVocabulary& vocabulary) {
  auto ids = json::object();
  for (const auto& [token, id] : vocabulary.ids.items()) {
    const bool is_framed = token.size() > 2 && token.front() == '[' && token.back() == ']';
    const bool is_special = vocabulary.kinds[id.get<size_t>()] != kNormalToken;
    const bool begins_word = token.starts_with(kSpaceMark);
    ids[is_framed || is_special ? token : begins_word ? token.substr(kSpaceMark.size()) : "##" + token] = id;
  }
  const auto unknown = gguf_special_token(header, vocabulary.tokens, kUnknownKey, kBertUnknown);
  require(unknown.has_value(), header.path, ": ", kUnknownKey, " is missing");
  const bool lowercase = header.boolean(kLowercaseKey, true);
  return {{"normalizer",
           {{"type", "BertNormalizer"},
            {"clean_text", true},
            {"handle_chinese_chars", true},
            {"lowercase", lowercase},
            {"strip_accents", header.boolean("tokenizer.ggml.normalizer.strip_accents", lowercase)}}},
          {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
          {"decoder", {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}},
          {"model",
           {{"type", "WordPiece"},
            {"unk_token", *unknown},
            {"continuing_subword_prefix", "##"},
            {"max_input_chars_per_word", 100},
            {"vocab", std::move(ids)}}}};
}

/// T5's kind: SentencePiece's unigram model.
json unigram_parts(const GgufHeader& header, const GgufVocabulary& vocabulary) {
  require(!header.boolean("tokenizer.ggml.treat_whitespace_as_suffix", false), header.path,
          ": tokenizer.ggml.treat_whitespace_as_suffix = true is not supported");
  const auto scores = read_scores(header, vocabulary);
  size_t count = vocabulary.tokens.size();
  while (count > 0 && vocabulary.kinds[count - 1] == kUnusedToken) --count;  // padding of the embedding table
  auto entries = json::array();
  for (size_t id = 0; id < count; ++id) {
    entries.push_back({vocabulary.tokens[id], vocabulary.kinds[id] == kUserDefinedToken ? 0.0 : scores[id]});
  }
  json normalizer;
  if (const auto table = header.integers("tokenizer.ggml.precompiled_charsmap"); !table.empty()) {
    std::string bytes;
    for (const auto value : table) bytes += static_cast<char>(value);
    normalizer = {{"type", "Precompiled"}, {"precompiled_charsmap", encode_base64(bytes)}};
  }
  json steps = json::array();
  if (header.boolean("tokenizer.ggml.remove_extra_whitespaces", false)) {
    steps.push_back({{"type", "CharDelimiterSplit"}, {"delimiter", " "}});
  }
  const bool prefixed = header.boolean("tokenizer.ggml.add_space_prefix", true);
  const json marks = {
      {"type", "Metaspace"}, {"replacement", kSpaceMark}, {"prepend_scheme", prefixed ? "always" : "never"}};
  steps.push_back(marks);
  return {{"normalizer", std::move(normalizer)},
          {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}}},
          {"decoder", marks},
          {"model",
           {{"type", "Unigram"},
            {"unk_id", header.integer(kUnknownKey, kT5Unknown)},
            {"vocab", std::move(entries)},
            {"byte_fallback", false}}}};
}

}  // namespace troupe
