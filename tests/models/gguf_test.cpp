#include "models/formats/gguf_header.h"
#include "models/formats/gguf_reader.h"
#include "models/formats/gguf_tokenizer.h"
#include "models/text/tokenizer.h"

#include <nlohmann/json.hpp>

#include "base/cpu.h"
#include "models/formats/dequantise.h"
#include "tests/doctest.h"
#include "tests/models/format_helpers.h"

using namespace troupe;
using namespace troupe::test;

namespace {

std::string parse_error(const GgufBuilder& builder) {
  return error_of([&] { parse_gguf_header(as_bytes(builder.bytes()), "x.gguf"); });
}

}  // namespace

TEST_CASE("GGUF metadata of every type") {
  GgufBuilder builder(1, 5);
  builder.key_text("general.architecture", "llama").key_uint32("n", 7).key_float("eps", 1e-5f);
  builder.text("words").put<uint32_t>(9).put<uint32_t>(8).put<uint64_t>(2).text("a").text("bc");
  builder.text("numbers").put<uint32_t>(9).put<uint32_t>(5).put<uint64_t>(2).put<int32_t>(-1).put<int32_t>(4);
  builder.tensor("t", {4, 2}, 0, 0).align().raw(std::string(32, '\0'));
  const auto header = parse_gguf_header(as_bytes(builder.bytes()), "x.gguf");
  CHECK(header.text("general.architecture") == "llama");
  CHECK(header.integer("n") == 7);
  CHECK(header.number("eps") == 1e-5);  // the decimal that was meant, not the float's expansion
  CHECK(header.texts("words") == std::vector<std::string_view>{"a", "bc"});
  CHECK(header.integers("numbers") == std::vector<int64_t>{-1, 4});
  CHECK(header.tensors.at("t").shape == std::vector<int64_t>{2, 4});
  CHECK(header.tensors.at("t").bytes.size() == 32);
  CHECK(contains(error_of([&] { header.integer("eps"); }), "\"eps\" must be an integer"));
  CHECK(contains(error_of([&] { header.text("absent"); }), "\"absent\" is missing"));
}

TEST_CASE("B060 a crafted GGUF file is refused by name") {
  const auto memory_before = resident_memory_bytes();
  const auto begin = std::chrono::steady_clock::now();
  CHECK(contains(parse_error(GgufBuilder(1, 0).tensor("t", {1, 1, 1, 1, 1}, 0, 0)), "5 dimensions"));
  CHECK(contains(parse_error(GgufBuilder(1, 0).tensor("t", {1ull << 40, 1ull << 40}, 0, 0)), "overflows"));
  CHECK(contains(parse_error(GgufBuilder(1, 0).tensor("t", {1ull << 62, 1}, 0, 0).align()), "past the end"));
  CHECK(contains(parse_error(GgufBuilder(1, 0).tensor("t", {0}, 0, 0)), "is 0"));
  CHECK(contains(parse_error(GgufBuilder(0, 1).text("k").put<uint32_t>(8).put<uint64_t>(1ull << 60)), "truncated"));
  CHECK(contains(parse_error(GgufBuilder(0, 1).put<uint64_t>(1ull << 60)), "too long"));
  CHECK(contains(parse_error(GgufBuilder(0, 1).key_uint32("general.alignment", 0)), "general.alignment = 0"));
  CHECK(contains(parse_error(GgufBuilder(0, 1).key_uint32("general.alignment", 3)), "general.alignment = 3"));
  CHECK(contains(parse_error(GgufBuilder(0, 1).text("k").put<uint32_t>(13)), "unknown type 13"));
  CHECK(contains(parse_error(GgufBuilder(1, 0).tensor("t", {32}, 99, 0)), "type 99"));
  GgufBuilder deep(0, 1);
  deep.text("k");
  for (int level = 0; level < 1000; ++level) deep.put<uint32_t>(9).put<uint64_t>(1);
  CHECK(contains(parse_error(deep), "list of lists") == false);  // the count is read as a type first
  GgufBuilder nested(0, 1);
  nested.text("k").put<uint32_t>(9);
  for (int level = 0; level < 1000; ++level) nested.put<uint32_t>(9).put<uint64_t>(1);
  CHECK(contains(parse_error(nested), "list of lists"));
  CHECK(contains(parse_error(GgufBuilder(0, 1).text("k").put<uint32_t>(9).put<uint32_t>(0).put<uint64_t>(1ull << 40)),
                 "past the end"));
  CHECK(contains(parse_error(GgufBuilder(0, 1).text("k").put<uint32_t>(9).put<uint32_t>(8).put<uint64_t>(1ull << 40)),
                 "past the end"));
  CHECK(contains(parse_error(GgufBuilder(1ull << 60, 0)), "more than any model has"));
  CHECK(contains(parse_error(GgufBuilder(0, 1ull << 60)), "more than any model has"));
  CHECK(contains(parse_error(GgufBuilder(1, 0).tensor("t", {8}, 0, 0).align().raw("abc")), "truncated: tensor \"t\""));
  CHECK(contains(parse_error(GgufBuilder(1, 0).tensor("t", {8}, 0, 5)), "multiple of the alignment"));
  CHECK(contains(parse_error(GgufBuilder(1, 0).tensor("t", {8}, 2, 0)), "no multiple of the 32"));
  CHECK(contains(
      parse_error(GgufBuilder(2, 0).tensor("t", {16}, 0, 0).tensor("u", {8}, 0, 32).align().raw(std::string(64, 'x'))),
      "overlaps"));
  CHECK(contains(parse_error(GgufBuilder(2, 0).tensor("t", {8}, 0, 0).tensor("t", {8}, 0, 32)), "given twice"));
  CHECK(contains(parse_error(GgufBuilder(0, 2).key_uint32("k", 1).key_uint32("k", 1)), "given twice"));
  CHECK(contains(parse_error(GgufBuilder(0, 0, 1)), "version 1"));
  CHECK(contains(parse_error(GgufBuilder(0, 0, 0x03000000)), "big-endian"));
  CHECK(contains(error_of([] { parse_gguf_header(as_bytes("GGML1234"), "x.gguf"); }), "not a GGUF file"));
  GgufBuilder good(1, 1);
  good.key_text("k", "v").tensor("t", {8}, 0, 0).align().raw(std::string(32, 'x'));
  CHECK(parse_error(good) == "no error");
  for (size_t size = 0; size < good.bytes().size(); ++size) {
    const auto part = good.bytes().substr(0, size);
    CHECK(error_of([&] { parse_gguf_header(as_bytes(part), "x.gguf"); }) != "no error");
  }
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(1));
  CHECK(resident_memory_bytes() - memory_before < 100 << 20);
}

TEST_CASE("B057 rotary rows of q and k are put back in order") {
  const auto order = stored_rotary_rows(2, 4);
  const std::vector<int64_t> stored = {0, 2, 1, 3, 4, 6, 5, 7};
  for (size_t row = 0; row < 8; ++row) CHECK(stored[static_cast<size_t>(order[row])] == static_cast<int64_t>(row));
  // A whole file: 2 query heads and 1 key head of size 4, hidden size 8; row r of q and k is filled with its number.
  const auto rows = [](const std::vector<int>& numbers) {
    std::string bytes;
    for (const int number : numbers) {
      for (int i = 0; i < 8; ++i) {
        const auto value = static_cast<float>(number);
        bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
      }
    }
    return bytes;
  };
  GgufBuilder builder(3, 8);
  builder.key_text("general.architecture", "llama")
      .key_uint32("llama.block_count", 1)
      .key_uint32("llama.context_length", 16);
  builder.key_uint32("llama.embedding_length", 8)
      .key_uint32("llama.feed_forward_length", 8)
      .key_uint32("llama.attention.head_count", 2);
  builder.key_uint32("llama.attention.head_count_kv", 1).key_float("llama.attention.layer_norm_rms_epsilon", 1e-6f);
  builder.tensor("token_embd.weight", {8, 2}, 0, 0)
      .tensor("blk.0.attn_q.weight", {8, 8}, 0, 64)
      .tensor("blk.0.attn_k.weight", {8, 4}, 0, 320);
  builder.align().raw(rows({0, 1})).raw(rows({0, 2, 1, 3, 4, 6, 5, 7})).raw(rows({0, 2, 1, 3}));
  const TemporaryFolder folder;
  write_file_synced(folder / "x.gguf", builder.bytes());
  const auto reader = open_checkpoint(folder / "x.gguf");
  CHECK(at::equal(reader->read("model.layers.0.self_attn.q_proj.weight", at::kFloat).select(1, 0),
                  at::arange(8, at::kFloat)));
  CHECK(at::equal(reader->read("model.layers.0.self_attn.k_proj.weight", at::kFloat).select(1, 0),
                  at::arange(4, at::kFloat)));
  CHECK(contains(error_of([&] { load_weights(*reader, at::kFloat); }),
                 "missing tensors: model.layers.0.input_layernorm.weight"));
  CHECK(open_checkpoint(folder.path())->config().tie_word_embeddings);  // a folder with one GGUF file
  write_file_synced(folder / "y.gguf", builder.bytes());
  CHECK(contains(error_of([&] { open_checkpoint(folder.path()); }), "2 .gguf files"));
}

TEST_CASE("a split GGUF opens as one model, and says which part is missing or wrong") {
  const TemporaryFolder folder;
  const auto part = [](uint32_t number, uint32_t count, std::string_view tensor, uint32_t total) {
    GgufBuilder builder(1, number == 0 ? 11 : 3);
    builder.key_uint32("split.no", number).key_uint32("split.count", count).key_uint32("split.tensors.count", total);
    if (number == 0) {
      builder.key_text("general.architecture", "llama").key_uint32("llama.block_count", 1);
      builder.key_uint32("llama.context_length", 16).key_uint32("llama.embedding_length", 8);
      builder.key_uint32("llama.feed_forward_length", 8).key_uint32("llama.attention.head_count", 2);
      builder.key_uint32("llama.attention.head_count_kv", 1);
      builder.key_float("llama.attention.layer_norm_rms_epsilon", 1e-6f);
    }
    return builder.tensor(tensor, {8, 2}, 0, 0).align().raw(std::string(64, '\0')).bytes();
  };
  write_file_synced(folder / "m-00001-of-00002.gguf", part(0, 2, "token_embd.weight", 2));
  CHECK(contains(error_of([&] { open_checkpoint(folder.path()); }), "m-00002-of-00002.gguf: this part"));
  write_file_synced(folder / "m-00002-of-00002.gguf", part(1, 2, "output.weight", 2));
  for (const auto& path : {folder.path(), folder / "m-00001-of-00002.gguf", folder / "m-00002-of-00002.gguf"}) {
    const auto reader = open_checkpoint(path);
    CHECK(reader->tensors().size() == 2);
    CHECK_FALSE(reader->config().tie_word_embeddings);
    CHECK(reader->read("lm_head.weight", at::kFloat).sum().item<float>() == 0);
  }
  const auto error_with = [&](const std::string& second) {
    write_file_synced(folder / "m-00002-of-00002.gguf", second);
    return error_of([&] { open_checkpoint(folder.path()); });
  };
  CHECK(contains(error_with(part(2, 2, "output.weight", 2)), "not part 2 of 2"));
  CHECK(contains(error_with(part(1, 2, "token_embd.weight", 2)), "given twice"));
  write_file_synced(folder / "m-00001-of-00002.gguf", part(0, 2, "token_embd.weight", 3));
  CHECK(contains(error_with(part(1, 2, "output.weight", 3)), "split.tensors.count says 3"));
  std::filesystem::rename(folder / "m-00001-of-00002.gguf", folder / "other.gguf");
  CHECK(contains(error_of([&] { open_checkpoint(folder / "other.gguf"); }), "split.count = 2"));
}

TEST_CASE("a SentencePiece vocabulary becomes merges, best score first") {
  const std::vector<std::string> tokens = {"<unk>", "<s>", "<0x41>", "a", "b", "c", "ab", "bc", "abc", "<mark>"};
  const std::vector<int32_t> kinds = {2, 3, 6, 1, 1, 1, 1, 1, 1, 4};
  const std::vector<float> scores = {0, 0, 0, -4, -5, -6, -2, -1, -3, 0};
  GgufBuilder builder(0, 6);
  builder.key_text("tokenizer.ggml.model", "llama")
      .key_uint32("tokenizer.ggml.bos_token_id", 1)
      .key_uint32("tokenizer.ggml.unknown_token_id", 0);
  builder.text("tokenizer.ggml.tokens").put<uint32_t>(9).put<uint32_t>(8).put<uint64_t>(tokens.size());
  for (const auto& token : tokens) builder.text(token);
  builder.text("tokenizer.ggml.token_type").put<uint32_t>(9).put<uint32_t>(5).put<uint64_t>(kinds.size());
  for (const auto kind : kinds) builder.put(kind);
  builder.text("tokenizer.ggml.scores").put<uint32_t>(9).put<uint32_t>(6).put<uint64_t>(scores.size());
  for (const auto score : scores) builder.put(score);
  const auto header = parse_gguf_header(as_bytes(builder.bytes()), "x.gguf");
  const auto tokenizer = nlohmann::json::parse(gguf_tokenizer_json(header));
  const auto expected = nlohmann::json::parse(R"([["b","c"],["a","b"],["ab","c"],["a","bc"]])");
  CHECK(tokenizer["model"]["merges"] == expected);
  CHECK(tokenizer["model"]["byte_fallback"] == true);
  CHECK(tokenizer["model"]["unk_token"] == "<unk>");
  CHECK(tokenizer["added_tokens"].size() == 3);
  CHECK(tokenizer["added_tokens"][2]["special"] == false);
  CHECK(tokenizer["post_processor"]["special_tokens"]["<s>"]["ids"][0] == 1);
  CHECK(tokenizer["normalizer"]["normalizers"][0]["type"] == "Prepend");
}

TEST_CASE("GGUF vocabularies of BERT, T5 and Gemma 4") {
  const auto read = [](const std::string& kind, const std::vector<std::string>& tokens,
                       const std::vector<int32_t>& kinds, const std::vector<float>& scores,
                       const std::vector<std::string>& merges) {
    GgufBuilder builder(0, 6);
    builder.key_text("tokenizer.ggml.model", kind).key_uint32("tokenizer.ggml.unknown_token_id", 0);
    builder.text("tokenizer.ggml.tokens").put<uint32_t>(9).put<uint32_t>(8).put<uint64_t>(tokens.size());
    for (const auto& token : tokens) builder.text(token);
    builder.text("tokenizer.ggml.token_type").put<uint32_t>(9).put<uint32_t>(5).put<uint64_t>(kinds.size());
    for (const auto each : kinds) builder.put(each);
    builder.text("tokenizer.ggml.scores").put<uint32_t>(9).put<uint32_t>(6).put<uint64_t>(scores.size());
    for (const auto score : scores) builder.put(score);
    builder.text("tokenizer.ggml.merges").put<uint32_t>(9).put<uint32_t>(8).put<uint64_t>(merges.size());
    for (const auto& merge : merges) builder.text(merge);
    return parse_tokenizer(gguf_tokenizer_json(parse_gguf_header(as_bytes(builder.bytes()), "x.gguf")));
  };
  using Ids = std::vector<int32_t>;
  const std::string mark = "\xe2\x96\x81";
  const auto bert = read("bert", {"[UNK]", mark + "play", "ing", mark + ".", "[CLS]"}, {3, 1, 1, 1, 3}, {}, {});
  CHECK(bert->encode("Playing. no", false) == Ids{1, 2, 3, 0});
  CHECK(bert->decode({1, 2, 3}, true) == "playing.");
  const auto t5 = read("t5", {"<unk>", "</s>", mark, mark + "a", "a", "b", "ab", "[PAD]"}, {2, 3, 1, 1, 1, 1, 1, 5},
                       {0, 0, -2, -3, -4, -4, -5, -1000}, {});
  CHECK(t5->encode("ab a", true) == Ids{2, 6, 3, 1});  // </s> behind it, as llama.cpp has it for this kind
  CHECK(t5->decode({2, 6, 3}, true) == "ab a");
  const auto gemma = read("gemma4", {"<unk>", mark, "a", "b", mark + "a", "\n", "\n\n", "<0xC3>", "<0xA9>"},
                          {2, 1, 1, 1, 1, 1, 1, 6, 6}, {0, 0, 0, 0, 0, 0, 0, 0, 0}, {mark + " a", "\n \n"});
  CHECK(gemma->encode("b a\n\na", false) == Ids{3, 4, 6, 2});
  CHECK(gemma->decode({3, 4, 6, 2}, false) == "b a\n\na");
  CHECK_THROWS_WITH_AS(read("rwkv", {"a"}, {1}, {0}, {}),
                       "x.gguf: tokenizer.ggml.model = \"rwkv\" is not supported; supported are gpt2, llama, bert, t5, "
                       "gemma4, whitespace",
                       Error);
}

TEST_CASE("SmolLM2 from its GGUF file") {
  if (smollm2_gguf().empty()) {
    MESSAGE("skipped: SmolLM2 is not installed (scripts/install-deps)");
    return;
  }
  const auto reader = open_checkpoint(smollm2_gguf());
  const auto& config = reader->config();
  CHECK(config.num_parameters() == 134515008);
  CHECK(config.tie_word_embeddings);
  CHECK(config.rms_norm_eps == 1e-5);
  CHECK(config.rope.theta == 100000);
  CHECK(config.eos_token_ids == std::vector<int64_t>{2});
  const auto weights = load_weights(*reader, at::kBFloat16);
  CHECK(weights.size() == 272);
  for (const auto& [name, tensor] : weights) CHECK_MESSAGE(at::isfinite(tensor).all().item<bool>(), name);
  // The vocabulary is the published one.
  const auto made = nlohmann::json::parse(reader->tokenizer_json());
  const auto published =
      nlohmann::json::parse(read_file(fixture_models().parent_path() / "tokenizer/smollm2.tokenizer.json"));
  for (const auto& [key, value] : published.items()) CHECK_MESSAGE(made[key] == value, key);
  CHECK(contains(reader->chat_template(), "<|im_start|>"));
  CHECK(reader->tokenizer_config()["eos_token"] == "<|im_end|>");
}
