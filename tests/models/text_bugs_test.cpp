// Bug cases of kind d (tokenizer and chat template), each by its ID.
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "models/text/assistant_mask.h"
#include "models/text/chat_template.h"
#include "models/text/tokenizer.h"
#include "models/text/unicode.h"
#include "tests/doctest.h"

using namespace troupe;
using nlohmann::json;

namespace {

// A byte-level or plain vocabulary of the given tokens, in order of ids.
json tokenizer_json(const std::vector<std::string>& tokens, const json& merges, const json& added = json::array(),
                    const json& pre = nullptr) {
  json vocab = json::object();
  for (size_t i = 0; i < tokens.size(); ++i) vocab[tokens[i]] = i;
  return {{"added_tokens", added}, {"normalizer", nullptr},
          {"pre_tokenizer", pre},  {"post_processor", nullptr},
          {"decoder", nullptr},    {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
}

std::vector<std::string> tokens_of(const json& document, const std::string& text) {
  const auto tokenizer = parse_tokenizer(document.dump());
  std::vector<std::string> out;
  for (const int32_t id : tokenizer->encode(text, false)) out.push_back(tokenizer->token_bytes(id));
  return out;
}

json added_token(int id, const std::string& content) {
  return {{"id", id}, {"content", content}, {"special", false}, {"normalized", false}};
}
const json kByteLevel = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};

// Byte-level tokenizer with all 256 bytes and no merges.
json bytes_only() {
  json vocab = json::object();
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool own = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    std::string token;
    append_utf8(token, static_cast<char32_t>(own ? byte : next++));
    vocab[token] = byte;
  }
  return {{"added_tokens", json::array()},
          {"pre_tokenizer", kByteLevel},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", json::array()}}}};
}

}  // namespace

TEST_CASE("B061 added tokens are found leftmost first") {
  const auto document = tokenizer_json({"a", "b", "c", "d", "ab", "bcd"}, json::array(),
                                       json::array({added_token(4, "ab"), added_token(5, "bcd")}));
  CHECK(tokens_of(document, "abcd") == std::vector<std::string>{"ab", "c", "d"});
}

TEST_CASE("B062 an added token inside a word") {
  auto document = tokenizer_json({"F", "h", "r", "e", "er", "rer"}, json::array({"e r", "r er"}),
                                 json::array({added_token(6, "ü")}), kByteLevel);
  CHECK(tokens_of(document, "Führer") == std::vector<std::string>{"F", "ü", "h", "rer"});
}

TEST_CASE("B064 ignore_merges") {
  auto document = tokenizer_json({"a", "b", "c", "abc"}, json::array());
  CHECK(tokens_of(document, "abc") == std::vector<std::string>{"a", "b", "c"});
  document["model"]["ignore_merges"] = false;
  CHECK(tokens_of(document, "abc") == std::vector<std::string>{"a", "b", "c"});
  document["model"]["ignore_merges"] = true;
  CHECK(tokens_of(document, "abc") == std::vector<std::string>{"abc"});
}

TEST_CASE("B065 B066 white space by its Unicode property") {
  // With ignore_merges a white space character that is a piece of its own comes out as one token, else as its bytes.
  auto document = bytes_only();
  document["model"]["ignore_merges"] = true;
  auto& vocab = document["model"]["vocab"];
  vocab["\u00C2\u0127"] = 256;        // C2 85 in the byte alphabet
  vocab["\u00E2\u0122\u0125"] = 257;  // E2 80 83
  vocab["\u00C2\u0142"] = 258;        // C2 A0
  const auto tokenizer = parse_tokenizer(document.dump());
  CHECK(tokenizer->encode("?\u0085", false) == std::vector<int32_t>{'?', 256});
  CHECK(tokenizer->encode("a\u2003b", false) == std::vector<int32_t>{'a', 257, 'b'});
  CHECK(tokenizer->encode("a\u00A0b", false) == std::vector<int32_t>{'a', 258, 'b'});
}

TEST_CASE("B067 decoding leaves spaces before punctuation alone") {
  auto document = bytes_only();
  document["clean_up_tokenization_spaces"] = true;
  const auto tokenizer = parse_tokenizer(document.dump());
  CHECK(tokenizer->decode(tokenizer->encode("a , b ! c", false), true) == "a , b ! c");
}

TEST_CASE("B068 streaming gives whole characters") {
  const auto tokenizer = parse_tokenizer(bytes_only().dump());
  const auto ids = tokenizer->encode("😀", false);
  REQUIRE(ids.size() == 4);
  IncrementalDecoder decoder(*tokenizer, true);
  CHECK(decoder.push(ids[0]) == "");
  CHECK(decoder.push(ids[1]) == "");
  CHECK(decoder.push(ids[2]) == "");
  CHECK(decoder.push(ids[3]) == "😀");
  CHECK(decoder.finish() == "");
  IncrementalDecoder cut(*tokenizer, true);
  CHECK(cut.push(ids[0]) == "");
  CHECK(cut.push(ids[1]) == "");
  CHECK(cut.finish() == "\uFFFD");
}

TEST_CASE("B073 comments with dashes take the white space") {
  CHECK(ChatTemplate("A\n{#- note -#}\n  B{{ x }}").render({{"x", 1}}) == "AB1");
}

TEST_CASE("B074 templates are run, not guessed") {
  const ChatTemplate chat("{% for m in messages %}<|im_start|>#{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}");
  CHECK(chat.render({{"messages", {{{"role", "user"}, {"content", "Hi"}}}}}) == "<|im_start|>#user\nHi<|im_end|>\n");
  CHECK_THROWS_WITH_AS(ChatTemplate("\n{% include 'x' %}"), doctest::Contains("line 2: statement 'include'"), Error);
}

TEST_CASE("B075 both forms of merges") {
  const std::vector<std::string> tokens = {"h", "e", "\u00A0", "he", "he\u00A0"};
  const auto as_text = tokenizer_json(tokens, json::array({"h e", "he \u00A0"}));
  const auto as_pairs = tokenizer_json(tokens, json::array({{"h", "e"}, {"he", "\u00A0"}}));
  CHECK(tokens_of(as_text, "he\u00A0") == std::vector<std::string>{"he\u00A0"});
  CHECK(tokens_of(as_pairs, "he\u00A0") == std::vector<std::string>{"he\u00A0"});
  CHECK_THROWS_WITH_AS(parse_tokenizer(tokenizer_json(tokens, json::array({"h e", "he"})).dump()),
                       doctest::Contains("merge 1"), Error);
}

TEST_CASE("hostile templates end") {
  CHECK_THROWS_AS(ChatTemplate("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}").render(OrderedJson::object()), Error);
  CHECK_THROWS_AS(ChatTemplate("{{ 'x' * 1000000000000 }}").render(OrderedJson::object()), Error);
  CHECK_THROWS_AS(ChatTemplate("{{ range(100000000) }}").render(OrderedJson::object()), Error);
  CHECK_THROWS_AS(ChatTemplate("{{ " + std::string(100000, '(') + " }}"), Error);
}

TEST_CASE("generation blocks give the places that they wrote") {
  const ChatTemplate chat(
      "{% for m in messages %}[{{ m.role }}]{% generation %}{{ m.content }}{% endgeneration %};{% endfor %}");
  const auto rendered = chat.render_with_mask({{"messages", {{{"role", "a"}, {"content", "xyz"}}}}});
  CHECK(rendered.text == "[a]xyz;");
  CHECK((rendered.generated == std::vector<Span>{{3, 6}}));  // torch would print the vector
  CHECK(chat.has_generation_blocks());
}

TEST_CASE("B038 B039 assistant turns and their closing tokens") {
  const ChatTemplate chat(
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
  auto document = bytes_only();
  document["added_tokens"] = json::array({added_token(256, "<|im_start|>"), added_token(257, "<|im_end|>")});
  const auto tokenizer = parse_tokenizer(document.dump());
  OrderedJson messages = OrderedJson::array();
  for (const char* answer : {"ab", "abc", "abcd"}) {
    messages.push_back({{"role", "user"}, {"content", "Q"}});
    messages.push_back({{"role", "assistant"}, {"content", answer}});
  }
  const auto masked = [&](AssistantTurns turns) {
    const auto tokens = tokenize_assistant_turns(
        *tokenizer, render_assistant_turns(chat, {{"messages", messages}, {"add_generation_prompt", false}}, turns));
    std::vector<int32_t> out;
    for (size_t i = 0; i < tokens.ids.size(); ++i) {
      if (tokens.mask[i]) out.push_back(tokens.ids[i]);
    }
    return out;
  };
  CHECK(masked(AssistantTurns::kAll) ==
        std::vector<int32_t>{'a', 'b', 257, 'a', 'b', 'c', 257, 'a', 'b', 'c', 'd', 257});
  CHECK(masked(AssistantTurns::kLast) == std::vector<int32_t>{'a', 'b', 'c', 'd', 257});
}
