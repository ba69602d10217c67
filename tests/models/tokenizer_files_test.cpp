// Tokenizers that are no tokenizer.json: SentencePiece's model file and tiktoken's, with what the folder says beside
// them.
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "models/formats/gguf_header.h"
#include "models/formats/gguf_pre_tokenizer.h"
#include "models/formats/gguf_tokenizer.h"
#include "models/text/model_text.h"
#include "models/text/regex.h"
#include "tests/doctest.h"

using namespace troupe;
using nlohmann::json;

namespace {

std::string test_data(const char* name) {
  return read_file(std::string(TROUPE_SOURCE_DIR) + "/tests/models/data/" + name);
}

// Single bytes a, b, c, space, then "aa", "aaa", "ab".
constexpr const char* kTiktoken = "YQ== 0\nYg== 1\nYw== 2\nIA== 3\nYWE= 4\nYWFh 5\nYWI= 6\n";

}  // namespace

TEST_CASE("SentencePiece's byte-pair and unigram models give the ids of the library's own Python binding") {
  const auto expected = json::parse(test_data("sentencepiece_cases.json"));
  for (const char* kind : {"bpe", "unigram"}) {
    const auto tokenizer = open_tokenizer({{"tokenizer.model", test_data((std::string(kind) + ".model").c_str())}});
    REQUIRE(tokenizer != nullptr);
    for (const auto& item : expected.at(kind)) {
      const auto text = item.at("text").get<std::string>();
      CHECK_MESSAGE(tokenizer->encode(text, false) == item.at("ids").get<std::vector<int32_t>>(), kind, ": ", text);
    }
    CHECK(tokenizer->encode("the", true).front() == tokenizer->token_id("<s>"));
    CHECK(tokenizer->is_special(tokenizer->token_id("</s>")));
    CHECK(tokenizer->token_id("not a token") == -1);
  }
}

TEST_CASE("SentencePiece: text round trip, spans, added tokens, the dummy space and half characters") {
  json settings = {{"add_bos_token", false},
                   {"added_tokens_decoder", {{"330", {{"content", "<|end|>"}, {"special", true}}}}}};
  std::map<std::string, std::string> files = {{"tokenizer.model", test_data("bpe.model")},
                                              {"tokenizer_config.json", settings.dump()}};
  const auto legacy = open_tokenizer(files);
  const std::string text = "the stage <|end|>the 日本 🎉";
  const auto encoding = legacy->encode_with_spans(text, true);
  CHECK(encoding.ids == legacy->encode(text, true));
  CHECK(encoding.ids.front() != legacy->token_id("<s>"));
  CHECK(std::count(encoding.ids.begin(), encoding.ids.end(), 330) == 1);
  CHECK(legacy->decode(encoding.ids, false) == "the stage <|end|> the 日本 🎉");  // each part has its dummy space
  CHECK(legacy->decode(encoding.ids, true) == "the stage  the 日本 🎉");
  size_t covered = 0;
  for (const Span span : encoding.spans) {
    CHECK(span.begin <= covered);
    covered = std::max(covered, span.end);
  }
  CHECK(covered == text.size());
  IncrementalDecoder stream(*legacy, false);
  std::string joined;
  for (const int32_t id : encoding.ids) {
    const auto chunk = stream.push(id);
    CHECK(chunk.find("\xEF\xBF\xBD") == std::string::npos);
    joined += chunk;
  }
  CHECK(joined + stream.finish() == legacy->decode(encoding.ids, false));

  settings["legacy"] = false;
  files["tokenizer_config.json"] = settings.dump();
  const auto modern = open_tokenizer(files);
  CHECK(modern->decode(modern->encode(text, false), false) == text);
  CHECK(modern->encode("the stage", false) == legacy->encode("the stage", false));
}

TEST_CASE("SentencePiece: a broken file is an error") {
  const auto model = test_data("bpe.model");
  CHECK_THROWS_AS(open_tokenizer({{"tokenizer.model", model.substr(0, 100)}}), Error);
  CHECK_THROWS_AS(open_tokenizer({{"tokenizer.model", "no model"}}), Error);
  CHECK_THROWS_AS(open_tokenizer({{"tokenizer.model", model}, {"tokenizer_config.json", "["}}), Error);
  CHECK_THROWS_AS(open_tokenizer({{"tokenizer.model", model},
                                  {"tokenizer_config.json", R"({"added_tokens_decoder": {"x": {"content": "y"}}})"}}),
                  Error);
  CHECK(open_tokenizer({{"tokenizer_config.json", "{}"}}) == nullptr);
}

TEST_CASE(
    "tiktoken: the pair whose union ranks lowest merges first, the leftmost of equals; whole pieces are looked up") {
  const auto tokenizer = open_tokenizer({{"cl100k_base.tiktoken", kTiktoken}});
  CHECK(tokenizer->encode("aab", false) == std::vector<int32_t>{4, 1});  // aa before ab
  CHECK(tokenizer->encode("aaaab", false) == std::vector<int32_t>{4, 4, 1});
  CHECK(tokenizer->encode("aaa", false) == std::vector<int32_t>{5});
  CHECK(tokenizer->encode("cab", false) == std::vector<int32_t>{2, 6});
  CHECK(tokenizer->decode({2, 6, 3, 5}, false) == "cab aaa");
}

TEST_CASE("tiktoken: special tokens come from the folder, or from the model's own code") {
  const auto llama = open_tokenizer({{"tokenizer.model", kTiktoken}});
  CHECK(llama->vocab_size() == 7 + 256);
  CHECK(llama->token_id("<|begin_of_text|>") == 7);
  CHECK(llama->token_id("<|eot_id|>") == 16);
  CHECK(llama->encode("a<|eot_id|>b", false) == std::vector<int32_t>{0, 16, 1});
  const auto qwen = open_tokenizer({{"qwen.tiktoken", kTiktoken}});
  CHECK(qwen->token_id("<|extra_204|>") == 7 + 207);
  CHECK(qwen->vocab_size() == 7 + 208);
  const auto kimi = open_tokenizer(
      {{"tiktoken.model", kTiktoken},
       {"tokenizer_config.json", R"({"added_tokens_decoder": {"7": {"content": "[BOS]", "special": true}}})"}});
  CHECK(kimi->encode("[BOS]ab", false) == std::vector<int32_t>{7, 6});
}

TEST_CASE("tiktoken: errors name file and line") {
  CHECK_THROWS_WITH_AS(open_tokenizer({{"qwen.tiktoken", "YQ== 0\n!! 1\n"}}),
                       "qwen.tiktoken, line 2: not a token in base64 and its rank", Error);
  CHECK_THROWS_WITH_AS(open_tokenizer({{"qwen.tiktoken", "YQ== 0\nYQ== 1\n"}}),
                       "qwen.tiktoken, line 2: the token is given twice", Error);
  CHECK_THROWS_AS(open_tokenizer({{"other.tiktoken", "YQ== 0\n"}}), Error);
  CHECK_THROWS_AS(open_tokenizer({{"qwen.tiktoken", "YQ== 99999999999\n"}}), Error);
}

TEST_CASE("every named scheme of GGUF cuts with expressions that compile") {
  for (const char* name : {"smollm", "gpt-2", "llama-bpe", "dbrx", "qwen2", "qwen35", "stablelm2", "gpt-4o", "tekken",
                           "deepseek-v3", "deepseek-coder", "kimi-k2", "seed-coder", "bailingmoe", "bloom", "viking"}) {
    const auto& scheme = find_gguf_pre_tokenizer(name, "file.gguf");
    for (const auto* pattern : scheme.patterns) CHECK_NOTHROW(Regex(pcre_pattern(pattern)));
  }
  CHECK_THROWS_AS(find_gguf_pre_tokenizer("no-such", "file.gguf"), Error);
  const auto pieces = [](const char* name, const std::string& text) {
    std::vector<Span> found;
    Regex(pcre_pattern(find_gguf_pre_tokenizer(name, "f").patterns.front())).find_all(text, found);
    std::vector<std::string> out;
    for (const Span span : found) out.push_back(text.substr(span.begin, span.end - span.begin));
    return out;
  };
  CHECK(pieces("gpt-4o", "HTTPServer's 12345") == std::vector<std::string>{"HTTPServer's", " ", "123", "45"});
  CHECK(pieces("tekken", "fooBar 12") == std::vector<std::string>{"foo", "Bar", " ", "1", "2"});
  CHECK(pieces("kimi-k2", "漢字abc字") == std::vector<std::string>{"漢字", "abc", "字"});
}

// For tests/soak: a folder of GGUF vocabularies with texts (.inp) and ids (.out) beside them, as llama.cpp's source
// has.
TEST_CASE("vocabularies of TROUPE_GGUF_VOCABULARIES" * doctest::skip()) {
  const char* folder = std::getenv("TROUPE_GGUF_VOCABULARIES");
  REQUIRE(folder != nullptr);
  constexpr std::string_view kBetween = "\n__ggml_vocab_test__\n";
  for (const auto& item : std::filesystem::directory_iterator(folder)) {
    const auto path = item.path();
    if (path.extension() != ".gguf" || !std::filesystem::exists(path.string() + ".inp")) continue;
    const MappedFile file(path);
    std::unique_ptr<Tokenizer> tokenizer;
    try {
      tokenizer = parse_tokenizer(gguf_tokenizer_json(parse_gguf_header(file.bytes(), path.string())));
    } catch (const Error& error) {
      MESSAGE(path.filename().string(), " is refused: ", std::string(error.what()));
      continue;
    }
    const auto texts = read_file(path.string() + ".inp");
    std::istringstream lines(read_file(path.string() + ".out"));
    size_t num_equal = 0, num_texts = 0;
    std::string line;
    for (size_t at = 0; std::getline(lines, line); ++num_texts) {
      const auto end = std::min(texts.find(kBetween, at), texts.size());
      const auto text = texts.substr(at, end - at);
      at = end + kBetween.size();
      std::istringstream numbers(line);
      const std::vector<int32_t> ids{std::istream_iterator<int32_t>(numbers), {}};
      const auto got = tokenizer->encode(text, false);
      num_equal += got == ids;
      CHECK_MESSAGE((got == ids), path.filename().string(), ": ", text);
    }
    MESSAGE(path.filename().string(), ": ", num_equal, " of ", num_texts, " texts have the reference's ids");
  }
}
