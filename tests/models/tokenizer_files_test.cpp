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
#include "models/text/pre_tokenizer.h"
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
  for (const char* name : {"default",
                           "minicpm5",
                           "llama3",
                           "llama-v3",
                           "llama-bpe",
                           "falcon3",
                           "falcon-h1",
                           "pixtral",
                           "midm-2.0",
                           "lfm2",
                           "jina-v5-nano",
                           "deepseek-llm",
                           "spark2_5",
                           "youtu",
                           "deepseek-coder",
                           "deepseek-v3",
                           "falcon",
                           "mpt",
                           "starcoder",
                           "gpt-2",
                           "phi-2",
                           "jina-es",
                           "jina-de",
                           "gigachat",
                           "jina-v2-es",
                           "jina-v2-de",
                           "a.x-4.0",
                           "mellum",
                           "modern-bert",
                           "jais-2",
                           "gemma4",
                           "sarvam-moe",
                           "jina-v1-en",
                           "jina-v2-code",
                           "roberta-bpe",
                           "whitespace",
                           "refact",
                           "command-r",
                           "qwen2",
                           "kormo",
                           "f2llmv2",
                           "deepseek-r1-qwen",
                           "qwen35",
                           "stablelm2",
                           "olmo",
                           "dbrx",
                           "smaug-bpe",
                           "poro-chat",
                           "chatglm-bpe",
                           "glm4",
                           "glm5",
                           "viking",
                           "jais",
                           "tekken",
                           "smollm",
                           "codeshell",
                           "bloom",
                           "gpt3-finnish",
                           "exaone",
                           "exaone4",
                           "exaone-moe",
                           "chameleon",
                           "minerva-7b",
                           "megrez",
                           "gpt-4o",
                           "llama4",
                           "kanana2",
                           "talkie",
                           "tiny_aya",
                           "cohere2moe",
                           "superbpe",
                           "trillion",
                           "bailingmoe",
                           "bailingmoe2",
                           "llada-moe",
                           "seed-coder",
                           "granite-docling",
                           "hunyuan",
                           "hy_v4",
                           "hunyuan-dense",
                           "joyai-llm",
                           "kimi-k2",
                           "ufakzeka",
                           "grok-2",
                           "afmoe",
                           "laguna",
                           "minimax-m2",
                           "solar-open",
                           "mellum2",
                           "granite-embed-multi-311m",
                           "granite-embed-multi-97m"}) {
    CAPTURE(name);
    CHECK_NOTHROW(parse_pre_tokenizer(pre_tokenizer_json(find_gguf_pre_tokenizer(name, "file.gguf"), false)));
  }
  CHECK_THROWS_AS(find_gguf_pre_tokenizer("no-such", "file.gguf"), Error);
  const auto pieces = [](const char* name, const std::string& text) {
    const auto chain = parse_pre_tokenizer(pre_tokenizer_json(find_gguf_pre_tokenizer(name, "f"), false));
    PieceList list;
    list.text.text = text;
    list.pieces = {{0, text.size()}};
    for (const auto& step : chain.steps) step->apply(list);
    std::vector<std::string> out;
    for (const Span span : list.pieces) out.push_back(list.text.text.substr(span.begin, span.end - span.begin));
    return out;
  };
  CHECK(pieces("gpt-4o", "HTTPServer's 12345") == std::vector<std::string>{"HTTPServer's", " ", "123", "45"});
  CHECK(pieces("tekken", "fooBar 12") == std::vector<std::string>{"foo", "Bar", " ", "1", "2"});
  CHECK(pieces("kimi-k2", "漢字abc字") == std::vector<std::string>{"漢字", "abc", "字"});
  using Pieces = std::vector<std::string>;
  CHECK(pieces("superbpe", "so 1234567 it is") == Pieces{"so ", "1", "234", "567", " it is"});
  CHECK(pieces("afmoe", "x12345 日本y") == Pieces{"x", "12", "345", " ", "日本", "y"});
  CHECK(pieces("tiny_aya", "1234567 a") == Pieces{"1", "234", "567", " a"});
  CHECK(pieces("falcon", "a+b 12345") == Pieces{"a", "+", "b", " ", "123", "45"});
  CHECK(pieces("deepseek-llm", "Ab9 日本! \n") == Pieces{"Ab", "9", " ", "日本", "!", " ", "\n"});
  CHECK(pieces("gemma4", "a b\n\nc") == Pieces{"a b", "\n\n", "c"});
  CHECK(pieces("whitespace", " a  b\n") == Pieces{"a", "b"});
  CHECK(pieces("exaone-moe", "a b 1") == Pieces{"a b", " ", "1"});
  CHECK(pieces("jais-2", "   a") == Pieces{"  ", " a"});
}

TEST_CASE("what Oniguruma means otherwise than PCRE is rewritten") {
  const auto matches = [](const char* pattern, const std::string& text, bool keep_empty = false) {
    std::vector<Span> found;
    Regex(pcre_pattern(pattern)).find_all(text, found, keep_empty);
    std::vector<std::string> out;
    for (const Span span : found) out.push_back(text.substr(span.begin, span.end - span.begin));
    return out;
  };
  using Pieces = std::vector<std::string>;
  CHECK(matches("\\p{N}{1,3}+", "12345a6") == Pieces{"12345", "6"});  // repeats the interval, is not possessive
  CHECK(matches("(?:ab){2}+", "ababababab") == Pieces{"abababab"});
  CHECK(matches("a{,2}b", "aaab") == Pieces{"aab"});
  CHECK(matches("\\h+", "xbeefz9") == Pieces{"beef", "9"});
  CHECK(matches("\\d+\\b", "12¼ 3x 4") == Pieces{"4"});  // U+00BC is a word character there
  CHECK(matches("[[:alnum:]]+|\\p{Alnum}", "aⓐ1 ½") == Pieces{"aⓐ1"});
  CHECK(matches("x\\B", "xx x") == Pieces{"x"});
  CHECK(matches("(?=b)", "abcb", true) == Pieces{"", ""});
  CHECK(matches("(?=b)", "abcb").empty());
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
