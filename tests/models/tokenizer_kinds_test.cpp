// Tokenizers of every kind of model (WordPiece, Unigram, WordLevel, GPT-2's pair of files) with their normalizers and
// decoders, against what the reference library made of the same files; the files and texts are of our own
// (data/make_tokenizers.py).
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "models/text/base64.h"
#include "models/text/model_text.h"
#include "models/text/normalizer.h"
#include "models/text/token_model.h"
#include "tests/doctest.h"

using namespace troupe;
using nlohmann::json;

namespace {

const json& reference() {
  static const json document =
      json::parse(read_file(std::string(TROUPE_SOURCE_DIR) + "/tests/models/data/tokenizers.json"));
  return document;
}

std::string error_with(const json& document) {
  try {
    parse_tokenizer(document.dump());
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::string error_with_model(const json& model) { return error_with({{"model", model}}); }

}  // namespace

TEST_CASE("WordPiece, Unigram and WordLevel give the reference's ids and texts") {
  for (const auto& [name, item] : reference().at("tokenizers").items()) {
    const auto tokenizer = parse_tokenizer(item.at("file").dump());
    for (const auto& example : item.at("cases")) {
      const auto text = example.at("text").get<std::string>();
      const auto ids = example.at("ids").get<std::vector<int32_t>>();
      CHECK_MESSAGE((tokenizer->encode(text, true) == ids), name, ": ", text);
      CHECK_MESSAGE(tokenizer->decode(ids, false) == example.at("decoded").get<std::string>(), name, ": ", text);
      const auto encoding = tokenizer->encode_with_spans(text, true);
      CHECK((encoding.ids == ids));
      for (const Span span : encoding.spans) CHECK((span.begin <= span.end && span.end <= text.size()));
    }
  }
}

TEST_CASE("vocab.json with merges.txt gives the ids of transformers") {
  for (const auto& [name, item] : reference().at("pairs").items()) {
    std::map<std::string, std::string> files = {{"tokenizer_config.json", item.at("config").dump()}};
    for (const auto& [file, content] : reference().at("pair").items()) files[file] = content.get<std::string>();
    const auto tokenizer = open_tokenizer(files);
    REQUIRE(tokenizer != nullptr);
    CHECK(describe_tokenizer(files) == "vocab.json and merges.txt");
    for (const auto& example : item.at("cases")) {
      const auto text = example.at("text").get<std::string>();
      CHECK_MESSAGE((tokenizer->encode(text, true) == example.at("ids").get<std::vector<int32_t>>()), name, ": ", text);
    }
    CHECK(tokenizer->is_special(tokenizer->token_id("<|endoftext|>")));
    files["tokenizer_config.json"] = R"({"tokenizer_class": "XLNetTokenizer"})";
    CHECK_THROWS_WITH_AS(open_tokenizer(files), doctest::Contains("\"XLNetTokenizer\""), Error);
    files["tokenizer_config.json"] = R"({"add_bos_token": true, "bos_token": "<|endoftext|>"})";
    CHECK(open_tokenizer(files)->encode("the", true).front() == tokenizer->token_id("<|endoftext|>"));
    files["merges.txt"] = "#version: 0.2\nt h\nbroken\n";
    CHECK_THROWS_WITH_AS(open_tokenizer(files), "merges.txt, line 3: not two tokens parted by one space", Error);
    files["vocab.json"] = "[1]";
    CHECK_THROWS_WITH_AS(open_tokenizer(files), "vocab.json: not a JSON object", Error);
  }
}

TEST_CASE("streamed text of WordPiece and Unigram equals the whole decoding") {
  for (const char* name : {"cased wordpiece", "unigram", "unigram bytes"}) {
    const auto tokenizer = parse_tokenizer(reference().at("tokenizers").at(name).at("file").dump());
    const auto ids = tokenizer->encode("the players play, on Über stage", false);
    IncrementalDecoder stream(*tokenizer, false);
    std::string joined;
    for (const int32_t id : ids) joined += stream.push(id);
    CHECK_MESSAGE(joined + stream.finish() == tokenizer->decode(ids, false), name);
  }
}

TEST_CASE("a tokenizer file is described by its kind") {
  CHECK(describe_tokenizer({}).empty());
  CHECK(describe_tokenizer({{"tokenizer.json", R"({"model": {"type": "Unigram"}})"}}) == "tokenizer.json (Unigram)");
  CHECK(describe_tokenizer({{"tokenizer.json", "broken"}}) == "tokenizer.json");
  CHECK(describe_tokenizer({{"qwen.tiktoken", "YQ== 0\n"}}) == "qwen.tiktoken (tiktoken)");
  CHECK(describe_tokenizer({{"tokenizer.model", "\n\x0e"}}) == "tokenizer.model (SentencePiece)");
  CHECK(describe_tokenizer({{"vocab.json", "{}"}}).empty());
}

TEST_CASE("models and normalizers that are broken are refused by name") {
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != text.npos; };
  CHECK(has(error_with_model({{"type", "Magic"}, {"vocab", json::object()}}), "'Magic'"));
  CHECK(has(error_with_model({{"type", "Unigram"}, {"vocab", json::object()}}), "not a list"));
  const auto entry = [](const char* token, const json& score) { return json::array({token, score}); };
  const auto unigram_of = [](const json& first, const json& second) {
    return json{{"type", "Unigram"}, {"vocab", json::array({first, second})}};
  };
  auto model = unigram_of(entry("a", -1.0), entry("b", -2));
  const auto unigram = parse_tokenizer(json{{"model", model}}.dump());
  CHECK(unigram->encode("ab", false) == std::vector<int32_t>{0, 1});
  CHECK_THROWS_WITH_AS(unigram->encode("abc", false), doctest::Contains("'c' has no token"), Error);
  model["unk_id"] = 2;
  CHECK(has(error_with_model(model), "unk_id = 2"));
  CHECK(has(error_with_model(unigram_of(entry("a", -1.0), json::array({"b"}))), "vocab[1]"));
  CHECK(has(error_with_model(unigram_of(entry("a", "b"), entry("c", 1))), "vocab[0]"));
  CHECK(has(error_with_model({{"type", "WordPiece"}, {"vocab", {{"a", 0}}}}), "'[UNK]'"));
  CHECK(has(error_with_model({{"type", "WordLevel"}, {"vocab", {{"a", -4}}}}), "'a'"));
  const auto table = [](const std::string& blob) {
    return json{{"type", "Precompiled"}, {"precompiled_charsmap", blob}};
  };
  CHECK_THROWS_WITH_AS(parse_normalizer(table("***")), doctest::Contains("no base64"), Error);
  CHECK_THROWS_WITH_AS(parse_normalizer(table("AAAA")), doctest::Contains("truncated"), Error);
  CHECK_THROWS_WITH_AS(parse_normalizer(table("/////w==")), doctest::Contains("a table of"), Error);
  CHECK(parse_normalizer(table("")) == nullptr);
}

TEST_CASE("a text without a pre-tokenizer merges part by part as it merges whole") {
  const std::string mark = "\xe2\x96\x81";
  const std::vector<std::pair<std::string, std::string>> merges = {
      {"b", "c"}, {"a", "b"}, {"a", "bc"}, {mark, "a"}, {mark + "a", "b"}, {mark, mark}, {"c", mark}, {"é", "a"}};
  json model = {{"type", "BPE"}, {"byte_fallback", true}, {"merges", json::array()}};
  int next = 0;
  for (const std::string token : {"a", "b", "c", "é", mark.c_str()}) model["vocab"][token] = next++;
  for (int byte = 0; byte < 256; ++byte) model["vocab"][byte_fallback_token(static_cast<unsigned>(byte))] = next++;
  for (const auto& [left, right] : merges) {
    model["merges"].push_back({left, right});
    model["vocab"][left + right] = next++;
  }
  const auto tokenizer = parse_tokenizer(json{{"model", model}}.dump());
  std::vector<std::string> tokens;
  std::string text;
  uint32_t state = 1;
  for (int i = 0; i < 700; ++i) {
    state = state * 1664525 + 1013904223;
    const std::vector<std::string> letters = {"a", "b", "c", "é", mark, "ü"};
    const auto& letter = letters[state >> 24 & 7 ? (state >> 16) % 5 : 5];
    text += letter;
    if (letter == "ü") {  // has no token: its two bytes stand for it
      tokens.insert(tokens.end(), {"<0xC3>", "<0xBC>"});
    } else {
      tokens.push_back(letter);
    }
  }
  const auto merge_once = [&] {  // the plain way: the lowest rank that applies, where it applies first
    for (const auto& [left, right] : merges) {
      for (size_t i = 0; i + 1 < tokens.size(); ++i) {
        if (tokens[i] != left || tokens[i + 1] != right) continue;
        tokens[i] += right;
        tokens.erase(tokens.begin() + static_cast<ptrdiff_t>(i) + 1);
        return true;
      }
    }
    return false;
  };
  while (merge_once()) {
  }
  std::vector<int32_t> expected;
  for (const auto& token : tokens) expected.push_back(model["vocab"][token].get<int32_t>());
  CHECK(tokenizer->encode(text, false) == expected);
}

TEST_CASE("decoding: marks of the first token, added tokens after normalisation, joiners beside single words") {
  const std::string mark = "\xe2\x96\x81";
  json file = {{"model", {{"type", "BPE"}, {"unk_token", "a"}, {"merges", json::array()}}},
               {"decoder", {{"type", "Metaspace"}, {"replacement", mark}, {"prepend_scheme", "always"}}},
               {"normalizer", {{"type", "Lowercase"}}}};
  file["model"]["vocab"] = {{"a", 0}, {mark + mark + "b" + mark + "c", 1}};
  file["added_tokens"] = {{{"id", 2}, {"content", "[A]"}, {"normalized", true}},
                          {{"id", 3}, {"content", "x"}, {"normalized", false}, {"single_word", true}}};
  const auto tokenizer = parse_tokenizer(file.dump());
  for (const auto& [ids, text] : {std::pair(std::vector<int32_t>{1, 1}, std::string("bc  b c")),
                                  std::pair(std::vector<int32_t>{0, 2}, std::string("a[a]"))}) {
    CHECK(tokenizer->decode(ids, false) == text);
    IncrementalDecoder stream(*tokenizer, false);
    std::string streamed;
    for (const int32_t id : ids) streamed += stream.push(id);
    CHECK(streamed + stream.finish() == text);
  }
  CHECK(tokenizer->encode("x a", false).front() == 3);
  CHECK(tokenizer->encode("x\u200D", false).front() == 0);  // a zero-width joiner counts as part of the word
}
