// Files that a stranger broke, one row each: opening or loading names the file and what is wrong in it, and neither
// crashes nor takes memory that the file only claims to need. B059 and B060 hold the two binary headers row by row;
// here the whole way from a folder on disk is gone.
#include <functional>
#include <nlohmann/json.hpp>

#include "base/cpu.h"
#include "models/formats/checkpoint_reader.h"
#include "models/formats/safetensors.h"
#include "models/text/model_text.h"
#include "tests/doctest.h"
#include "tests/models/format_helpers.h"

using namespace troupe;
using namespace troupe::test;
using nlohmann::json;

namespace {

const char* const kConfig = R"({"model_type": "llama", "vocab_size": 6, "hidden_size": 4, "intermediate_size": 8,
  "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": true})";

struct Row {
  const char* what;
  const char* file;  // which is written over a sound folder
  std::string content;
  std::vector<std::string> wanted;  // parts of the message, the file among them
};

/// The content of the file given by its name, with the one place `from` replaced.
std::string changed(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  require(at != text.npos, "the test's own file lacks ", from);
  return text.replace(at, from.size(), to);
}

/// Replaces in the header of a safetensors file, whose length follows.
std::string changed_header(const std::string& file, const std::string& from, const std::string& to) {
  uint64_t size = 0;
  std::memcpy(&size, file.data(), sizeof(size));
  const auto header = changed(file.substr(8, size), from, to);
  const uint64_t new_size = header.size();
  return std::string(reinterpret_cast<const char*>(&new_size), 8) + header + file.substr(8 + size);
}

const char* const kTokenizer = R"({"added_tokens": [{"id": 3, "content": "<s>", "special": true}],
  "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}})";

void load_all(const std::filesystem::path& folder) {
  const auto reader = open_checkpoint(folder);
  load_weights(*reader, at::kFloat);
  open_tokenizer(reader->text_files());
}

class SoundFolder {
 public:
  SoundFolder() {
    std::map<std::string, Tensor> tensors;
    for (const auto& spec : parameter_specs(parse_model_config(json::parse(kConfig)))) {
      tensors[spec.name] = at::rand(spec.shape);
    }
    write_safetensors(folder_ / "model.safetensors", tensors);
    write_file_synced(folder_ / "config.json", kConfig);
    write_file_synced(folder_ / "tokenizer.json", kTokenizer);
    weights_ = read_file(folder_ / "model.safetensors");
  }
  const std::string& weights() const { return weights_; }
  const std::filesystem::path& path() const { return folder_.path(); }

  /// The message of loading the folder with the row's file in its place; the sound one is put back.
  std::string error_with(const Row& row) const {
    const auto path = folder_ / row.file;
    const auto before = std::filesystem::exists(path) ? read_file(path) : std::string();
    write_file_synced(path, row.content);
    const auto message = error_of([&] { load_all(folder_.path()); });
    if (before.empty()) {
      std::filesystem::remove(path);
    } else {
      write_file_synced(path, before);
    }
    return message;
  }

 private:
  TemporaryFolder folder_;
  std::string weights_;
};

void check_rows(const SoundFolder& folder, const std::vector<Row>& rows) {
  const auto memory_before = resident_memory_bytes();
  for (const auto& row : rows) {
    const auto message = folder.error_with(row);
    CAPTURE(std::string(row.what));
    CAPTURE(message);
    for (const auto& part : row.wanted) CHECK(contains(message, part));
  }
  CHECK(resident_memory_bytes() - memory_before < 64 << 20);
}

std::string config_with(const char* key, json value) {
  auto config = json::parse(kConfig);
  config[key] = std::move(value);
  return config.dump();
}

std::string tokenizer_with(const std::function<void(json&)>& change) {
  auto document = json::parse(kTokenizer);
  change(document);
  return document.dump();
}

}  // namespace

TEST_CASE("malformed safetensors") {
  const SoundFolder folder;
  REQUIRE(error_of([&] { load_all(folder.path()); }) == "no error");
  const auto& good = folder.weights();
  const char* file = "model.safetensors";
  const std::string norm = R"("model.norm.weight")";
  const auto entry_at = good.find(norm), entry_end = good.find('}', entry_at);
  const auto entry = good.substr(entry_at, entry_end + 1 - entry_at);
  const auto with_entry = [&](const std::string& from, const std::string& to) {
    return changed_header(good, entry, changed(entry, from, to));
  };
  const auto offsets_at = entry.find("\"data_offsets\"");
  const auto offsets = entry.substr(offsets_at, entry.find(']', offsets_at) + 1 - offsets_at);
  std::vector<Row> rows = {
      {"empty", file, "", {file, "too short"}},
      {"truncated in the length", file, good.substr(0, 5), {file, "too short"}},
      {"truncated in the header", file, good.substr(0, 60), {file, "truncated"}},
      {"truncated in the data", file, good.substr(0, good.size() - 4), {file, "truncated"}},
      {"more than the header says", file, good + "1234", {file, "belong to no tensor"}},
      {"unknown dtype", file, with_entry("\"F32\"", "\"F33\""), {file, "model.norm.weight", "F33"}},
      {"wrong dtype", file, with_entry("\"F32\"", "\"F16\""), {file, "model.norm.weight", "16 bytes"}},
      {"negative size", file, with_entry("[4]", "[-4]"), {file, "model.norm.weight", "-4"}},
      {"huge size", file, with_entry("[4]", "[4611686018427387904]"), {file, "model.norm.weight"}},
      {"size that overflows", file, with_entry("[4]", "[9223372036854775807,8]"), {file, "overflows"}},
      {"wrong shape", file, with_entry("[4]", "[2,2]"), {"model.norm.weight", "shape [2, 2]"}},
      {"out of range", file, with_entry(offsets, R"("data_offsets":[4000,4016])"), {file, "model.norm.weight"}},
      {"overlapping", file, with_entry(offsets, R"("data_offsets":[0,16])"), {file, "overlap"}},
      {"duplicate name", file, changed_header(good, entry, entry + "," + entry), {file, "given twice"}},
      {"missing tensor", file, with_entry("model.norm.weight", "model.horn.weight"), {"missing", "model.norm.weight"}},
      {"other text", file, std::string(4096, 'x'), {file, "too long"}},
      {"pickle", file, std::string("PK\3\4") + std::string(4096, '\0'), {file}}};
  check_rows(folder, rows);
  for (size_t size = 0; size < good.size(); size += 37) {
    CHECK(error_of([&] { load_all(folder.path()); }) == "no error");
    CHECK(contains(folder.error_with({"truncated anywhere", file, good.substr(0, size), {}}), file));
  }
}

TEST_CASE("malformed index of shards") {
  const SoundFolder folder;
  const char* file = "model.safetensors.index.json";
  check_rows(folder,
             {{"no JSON", file, "{", {file, "not valid JSON"}},
              {"no map", file, R"({"metadata": {}})", {file, "no weight_map"}},
              {"a file elsewhere", file, R"({"weight_map": {"a": "../../etc/passwd"}})", {file, "../../etc/passwd"}},
              {"a file that is missing", file, R"({"weight_map": {"a": "gone.safetensors"}})", {"gone.safetensors"}},
              {"a tensor that is not there", file, R"({"weight_map": {"a": "model.safetensors"}})", {file, "\"a\""}},
              {"a number for a file", file, R"({"weight_map": {"a": 4}})", {file, "\"a\" names no file"}}});
}

TEST_CASE("malformed config.json") {
  const SoundFolder folder;
  const char* file = "config.json";
  const auto with = [](const char* key, json value) { return config_with(key, std::move(value)); };
  check_rows(folder, {{"empty", file, "", {file}},
                      {"no JSON", file, "{\"model_type\": ", {file, "not valid JSON"}},
                      {"a list", file, "[]", {file, "not an object"}},
                      {"unknown family", file, with("model_type", "martian"), {file, "martian"}},
                      {"negative size", file, with("vocab_size", -6), {file, "vocab_size"}},
                      {"zero", file, with("num_attention_heads", 0), {file, "num_attention_heads"}},
                      {"huge size", file, with("hidden_size", int64_t{1} << 60), {file, "hidden_size"}},
                      {"huge count", file, with("num_hidden_layers", 1000000000), {file, "num_hidden_layers"}},
                      {"wrong type", file, with("intermediate_size", "8"), {file, "intermediate_size"}},
                      {"a fraction", file, with("num_hidden_layers", 1.5), {file, "num_hidden_layers"}},
                      {"null", file, with("hidden_size", nullptr), {file, "hidden_size is missing"}},
                      {"no multiple", file, with("num_key_value_heads", 3), {file, "num_key_value_heads"}},
                      {"deep", file, std::string(100000, '['), {file}},
                      {"layers that are not there", file, with("num_hidden_layers", 2), {"model.layers.1."}}});
}

TEST_CASE("malformed tokenizer.json") {
  const SoundFolder folder;
  const char* file = "tokenizer.json";
  const auto with = tokenizer_with;
  check_rows(
      folder,
      {{"no JSON", file, "{\"model\":", {file}},
       {"a list", file, "[1]", {file, "not a JSON object"}},
       {"no model", file, "{}", {file, "model"}},
       {"unknown model", file, with([](json& d) { d["model"]["type"] = "Magic"; }), {file, "'Magic'"}},
       {"negative id", file, with([](json& d) { d["model"]["vocab"]["a"] = -1; }), {file, "'a'"}},
       {"id of a wrong type", file, with([](json& d) { d["model"]["vocab"]["a"] = "0"; }), {file, "'a'"}},
       {"huge id", file, with([](json& d) { d["model"]["vocab"]["a"] = 2000000000; }), {file, "2000000000"}},
       {"huge added id", file, with([](json& d) { d["added_tokens"][0]["id"] = 1 << 30; }), {file, "'<s>'"}},
       {"negative added id", file, with([](json& d) { d["added_tokens"][0]["id"] = -3; }), {file, "'<s>'"}},
       {"merge of one", file, with([](json& d) { d["model"]["merges"][0] = "ab"; }), {file, "merge 0"}},
       {"merge of none",
        file,
        with([](json& d) {
          d["model"]["merges"][0] = {"a", "z"};
        }),
        {file, "merge 0", "'z'"}},
       {"merges of a wrong type", file, with([](json& d) { d["model"]["merges"] = 4; }), {file, "merges"}},
       {"a vocabulary of a wrong type", file, with([](json& d) { d["model"]["vocab"] = 4; }), {file, "vocab"}},
       {"unknown normalizer",
        file,
        with([](json& d) {
          d["normalizer"] = {{"type", "X"}};
        }),
        {file, "normalizer 'X'"}},
       {"unknown decoder",
        file,
        with([](json& d) {
          d["decoder"] = {{"type", "X"}};
        }),
        {file, "decoder 'X'"}},
       {"a pre-tokenizer without a type", file, with([](json& d) { d["pre_tokenizer"] = json::object(); }), {file}},
       {"an expression that does not compile",
        file,
        with([](json& d) {
          d["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", "(("}}}, {"behavior", "Isolated"}};
        }),
        {"(("}},
       {"an unknown post-processor",
        file,
        with([](json& d) {
          d["post_processor"] = {{"type", "X"}};
        }),
        {file, "'X'"}},
       {"deep", file, std::string(100000, '['), {file}}});
}

TEST_CASE("malformed GGUF files from disk") {
  const TemporaryFolder folder;
  const auto path = folder / "x.gguf";
  const auto error_with = [&](const std::string& content) {
    write_file_synced(path, content);
    return error_of([&] { load_weights(*open_checkpoint(path), at::kFloat); });
  };
  const auto header = [](uint64_t num_tensors, uint32_t heads, uint32_t layers, uint32_t hidden) {
    GgufBuilder builder(num_tensors, 8);
    builder.key_text("general.architecture", "llama").key_uint32("llama.block_count", layers);
    builder.key_uint32("llama.context_length", 16).key_uint32("llama.embedding_length", hidden);
    builder.key_uint32("llama.feed_forward_length", 8).key_uint32("llama.attention.head_count", heads);
    builder.key_uint32("llama.attention.head_count_kv", heads);
    return builder.key_float("llama.attention.layer_norm_rms_epsilon", 1e-6f);
  };
  const auto memory_before = resident_memory_bytes();
  const auto with_embedding = [&](uint32_t heads, uint32_t layers, uint32_t hidden) {
    return header(1, heads, layers, hidden).tensor("token_embd.weight", {8, 2}, 0, 0).align().raw(std::string(64, 'x'));
  };
  const std::string good = with_embedding(2, 1, 8).bytes();
  CHECK(contains(error_with(good), "missing tensors: model.layers.0."));  // sound but for that
  const std::vector<std::pair<std::string, std::vector<std::string>>> rows = {
      {"", {"x.gguf"}},
      {"GGUF", {"x.gguf", "truncated"}},
      {good.substr(0, good.size() - 1), {"x.gguf", "token_embd.weight"}},
      {good.substr(0, 200), {"x.gguf", "truncated"}},
      {GgufBuilder(uint64_t{1} << 62, 0).bytes(), {"x.gguf", "more than any model has"}},
      {GgufBuilder(0, uint64_t{1} << 62).bytes(), {"x.gguf", "more than any model has"}},
      {header(1, 2, 1, 8).tensor("token_embd.weight", {8, 2}, 77, 0).align().raw(std::string(64, 'x')).bytes(),
       {"x.gguf", "token_embd.weight", "type 77"}},
      {header(1, 2, 1, 8).tensor("token_embd.weight", {uint64_t{1} << 40, uint64_t{1} << 40}, 0, 0).bytes(),
       {"x.gguf", "token_embd.weight"}},
      {header(2, 2, 1, 8)
           .tensor("token_embd.weight", {8, 2}, 0, 0)
           .tensor("token_embd.weight", {8, 2}, 0, 64)
           .align()
           .raw(std::string(128, 'x'))
           .bytes(),
       {"x.gguf", "token_embd.weight", "given twice"}},
      {with_embedding(0, 1, 8).bytes(), {"x.gguf", "head_count"}},
      {with_embedding(2, 0, 8).bytes(), {"x.gguf", "num_hidden_layers"}},
      {with_embedding(2, 4000000000u, 8).bytes(), {"x.gguf", "num_hidden_layers"}},
      {with_embedding(2, 1, 0).bytes(), {"x.gguf"}},
      {header(0, 2, 1, 8).align().bytes(), {"x.gguf", "token_embd.weight"}},
      {GgufBuilder(0, 1).key_text("general.architecture", "martian").align().bytes(), {"x.gguf", "martian"}}};
  for (const auto& [content, wanted] : rows) {
    const auto message = error_with(content);
    CAPTURE(message);
    for (const auto& part : wanted) CHECK(contains(message, part));
  }
  CHECK(resident_memory_bytes() - memory_before < 64 << 20);
}
