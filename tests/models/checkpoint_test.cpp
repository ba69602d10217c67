#include "models/formats/checkpoint_reader.h"

#include "models/formats/safetensors.h"
#include "tests/doctest.h"
#include "tests/models/format_helpers.h"

using namespace troupe;
using namespace troupe::test;
using nlohmann::json;

namespace {

/// A folder with the given configuration and tensors.
void make_folder(const std::filesystem::path& folder, const json& config,
                 const std::map<std::string, Tensor>& tensors) {
  make_folders(folder);
  write_file_synced(folder / "config.json", config.dump());
  write_safetensors(folder / "model.safetensors", tensors);
}

json toy_config(bool tied) {
  return {
      {"model_type", "llama"},  {"vocab_size", 6},          {"hidden_size", 4},         {"intermediate_size", 8},
      {"num_hidden_layers", 1}, {"num_attention_heads", 2}, {"num_key_value_heads", 1}, {"tie_word_embeddings", tied}};
}

std::map<std::string, Tensor> toy_tensors(const json& config) {
  std::map<std::string, Tensor> tensors;
  for (const auto& spec : parameter_specs(parse_model_config(config))) tensors[spec.name] = at::rand(spec.shape);
  return tensors;
}

}  // namespace

TEST_CASE("folders of the dense families load whole") {
  for (const std::string name : {"llama", "llama-hub", "llama-tied-bias", "qwen2", "qwen3-hub", "llama-reward"}) {
    CAPTURE(name);
    const auto reader = open_checkpoint(fixture_models() / name);
    const auto weights = load_weights(*reader, at::kFloat);
    CHECK(weights.size() == parameter_specs(reader->config()).size());
    const SafetensorsFile file(fixture_models() / name / "model.safetensors");
    for (const auto& [parameter, tensor] : weights) CHECK(at::equal(tensor, file.tensor(parameter)));
    const auto narrow = load_weights(*reader, at::kBFloat16);
    for (const auto& [parameter, tensor] : narrow) CHECK(at::equal(tensor, file.tensor(parameter).to(at::kBFloat16)));
  }
}

TEST_CASE("B055 a missing head is the embedding where tied, an error where not") {
  const TemporaryFolder folder;
  const auto tensors = toy_tensors(toy_config(true));
  make_folder(folder / "tied", toy_config(true), tensors);
  make_folder(folder / "untied", toy_config(false), tensors);
  CHECK(load_weights(*open_checkpoint(folder / "tied"), at::kFloat).size() == tensors.size());
  CHECK(contains(error_of([&] { load_weights(*open_checkpoint(folder / "untied"), at::kFloat); }),
                 "missing tensors: lm_head.weight"));
}

TEST_CASE("B056 a tied model saved with both names") {
  const TemporaryFolder folder;
  auto tensors = toy_tensors(toy_config(true));
  tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone();
  make_folder(folder / "equal", toy_config(true), tensors);
  const auto weights = load_weights(*open_checkpoint(folder / "equal"), at::kFloat);
  CHECK(weights.size() == tensors.size() - 1);
  CHECK_FALSE(weights.contains("lm_head.weight"));
  tensors["lm_head.weight"][0][0] += 1;
  make_folder(folder / "different", toy_config(true), tensors);
  const auto message = error_of([&] { load_weights(*open_checkpoint(folder / "different"), at::kFloat); });
  CHECK(contains(message, "lm_head.weight"));
  CHECK(contains(message, "model.embed_tokens.weight"));
}

TEST_CASE("extra and misshaped tensors name themselves") {
  const TemporaryFolder folder;
  auto tensors = toy_tensors(toy_config(false));
  tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = at::rand({1});
  make_folder(folder / "old", toy_config(false), tensors);
  CHECK(error_of([&] { load_weights(*open_checkpoint(folder / "old"), at::kFloat); }) == "no error");
  tensors["model.extra"] = at::rand({1});
  make_folder(folder / "extra", toy_config(false), tensors);
  CHECK(contains(error_of([&] { load_weights(*open_checkpoint(folder / "extra"), at::kFloat); }),
                 "unexpected tensors: model.extra"));
  tensors.erase("model.extra");
  tensors["model.norm.weight"] = at::rand({5});
  make_folder(folder / "shape", toy_config(false), tensors);
  CHECK(contains(error_of([&] { load_weights(*open_checkpoint(folder / "shape"), at::kFloat); }),
                 "model.norm.weight has the shape [5], not [4]"));
}

TEST_CASE("a weight that is not stored as floats names tensor and dtype") {
  const TemporaryFolder folder;
  for (const auto dtype : {at::kInt, at::kByte, at::kBool, at::kLong, at::kComplexFloat, at::kFloat8_e8m0fnu}) {
    const auto name = safetensors_dtype_of(dtype);
    CAPTURE(name);
    auto tensors = toy_tensors(toy_config(false));
    tensors["model.layers.0.mlp.up_proj.weight"] = at::ones({8, 4}).to(dtype);
    make_folder(folder / name, toy_config(false), tensors);
    CHECK(contains(error_of([&] { load_weights(*open_checkpoint(folder / name), at::kFloat); }),
                   concat("tensor model.layers.0.mlp.up_proj.weight has the dtype ", name, "; weights are")));
  }
  for (const auto dtype : {at::kDouble, at::kHalf, at::kBFloat16, at::kFloat8_e5m2, at::kFloat8_e4m3fn}) {
    const auto name = safetensors_dtype_of(dtype);
    CAPTURE(name);
    auto tensors = toy_tensors(toy_config(false));
    auto& weight = tensors["model.norm.weight"];
    weight = weight.to(dtype);
    make_folder(folder / name, toy_config(false), tensors);
    CHECK(at::equal(load_weights(*open_checkpoint(folder / name), at::kFloat).at("model.norm.weight"),
                    weight.to(at::kFloat)));
  }
  auto config = toy_config(false);  // FP8 that declares scales must have them
  config["quantization_config"] = {{"quant_method", "fp8"}};
  write_file_synced(folder / "F8_E4M3" / "config.json", config.dump());
  CHECK(contains(error_of([&] { open_checkpoint(folder / "F8_E4M3"); }), "model.norm.weight_scale_inv is missing"));
  auto tensors = toy_tensors(toy_config(false));  // and a scale of something else is not dropped
  tensors["model.norm.weight_scale_inv"] = at::ones({1});
  make_folder(folder / "scale", config, tensors);
  CHECK(contains(error_of([&] { load_weights(*open_checkpoint(folder / "scale"), at::kFloat); }),
                 "unexpected tensors: model.norm.weight_scale_inv"));
}

TEST_CASE("shards with an index") {
  const TemporaryFolder folder;
  const auto tensors = toy_tensors(toy_config(false));
  std::map<std::string, Tensor> halves[2];
  json index = {{"weight_map", json::object()}};
  int turn = 0;
  for (const auto& [name, tensor] : tensors) {
    const int half = turn++ % 2;
    halves[half][name] = tensor;
    index["weight_map"][name] = concat("part-", half, ".safetensors");
  }
  write_file_synced(folder / "config.json", toy_config(false).dump());
  for (int half : {0, 1}) write_safetensors(folder / concat("part-", half, ".safetensors"), halves[half]);
  write_file_synced(folder / "model.safetensors.index.json", index.dump());
  const auto weights = load_weights(*open_checkpoint(folder.path()), at::kFloat);
  for (const auto& [name, tensor] : tensors) CHECK(at::equal(weights.at(name), tensor));
  index["weight_map"]["model.norm.weight"] = "../part-0.safetensors";
  write_file_synced(folder / "model.safetensors.index.json", index.dump());
  CHECK(contains(error_of([&] { open_checkpoint(folder.path()); }), "not a file of this folder"));
  index["weight_map"]["model.norm.weight"] =
      halves[0].contains("model.norm.weight") ? "part-1.safetensors" : "part-0.safetensors";
  write_file_synced(folder / "model.safetensors.index.json", index.dump());
  CHECK(contains(error_of([&] { open_checkpoint(folder.path()); }), "\"model.norm.weight\" is not in part-"));
}

TEST_CASE("a written folder reads back the same, complete or absent") {
  const TemporaryFolder folder;
  const auto source = fixture_models() / "llama-tied-bias-hub";
  const auto reader = open_checkpoint(source);
  const auto weights = load_weights(*reader, at::kFloat);
  write_hf_folder(folder / "out", reader->config(), weights, at::kFloat, reader.get());
  const auto again = open_checkpoint(folder / "out");
  const auto reread = load_weights(*again, at::kFloat);
  for (const auto& [name, tensor] : weights) CHECK(at::equal(reread.at(name), tensor));
  CHECK_FALSE(again->tensors().contains("lm_head.weight"));
  CHECK(contains(error_of([&] { write_hf_folder(folder / "out", reader->config(), weights, at::kFloat, nullptr); }),
                 "exists already"));
  auto incomplete = weights;
  incomplete.erase("model.norm.weight");
  CHECK(contains(error_of([&] { write_hf_folder(folder / "part", reader->config(), incomplete, at::kFloat, nullptr); }),
                 "model.norm.weight is missing"));
  write_file_synced(folder / "file", "x");
  CHECK(error_of([&] { write_hf_folder(folder / "file" / "below", reader->config(), weights, at::kFloat, nullptr); }) !=
        "no error");
  std::vector<std::string> left;
  for (const auto& item : std::filesystem::directory_iterator(folder.path())) left.push_back(item.path().filename());
  std::sort(left.begin(), left.end());
  CHECK(left == std::vector<std::string>{"file", "out"});
}

TEST_CASE("the chat template and special tokens of a folder") {
  const TemporaryFolder folder;
  make_folder(folder / "m", toy_config(true), toy_tensors(toy_config(true)));
  write_file_synced(
      folder / "m" / "tokenizer_config.json",
      R"({"bos_token":{"content":"<s>","special":true},"eos_token":"</s>","chat_template":[{"name":"tool","template":"T"},{"name":"default","template":"D"}]})");
  write_file_synced(folder / "m" / "generation_config.json", R"({"eos_token_id":[2,5]})");
  const auto reader = open_checkpoint(folder / "m");
  CHECK(reader->chat_template() == "D");
  CHECK(reader->tokenizer_config()["bos_token"] == "<s>");
  CHECK(reader->tokenizer_config()["eos_token"] == "</s>");
  CHECK(reader->config().eos_token_ids == std::vector<int64_t>{2, 5});
  write_file_synced(folder / "m" / "chat_template.jinja", "J");
  CHECK(reader->chat_template() == "J");
  CHECK(reader->text_files().size() == 3);
}

TEST_CASE("what is not a model says so") {
  const TemporaryFolder folder;
  CHECK(contains(error_of([&] { open_checkpoint(folder / "absent"); }), "no such model"));
  CHECK(contains(error_of([&] { open_checkpoint(folder.path()); }), "not a model"));
  write_file_synced(folder / "noise.bin", "\x13\x37 noise");
  CHECK(contains(error_of([&] { open_checkpoint(folder / "noise.bin"); }), "not a model"));
  write_file_synced(folder / "noise.gguf", "\x13\x37 noise");
  CHECK(contains(error_of([&] { open_checkpoint(folder / "noise.gguf"); }), "not a GGUF file"));
  write_file_synced(folder / "config.json", "{\"model_type\": ");
  CHECK(contains(error_of([&] { open_checkpoint(folder.path()); }), "not valid JSON"));
  write_file_synced(folder / "config.json", toy_config(true).dump());
  CHECK(contains(error_of([&] { open_checkpoint(folder.path()); }), "neither model.safetensors nor"));
}

// Run by tests/soak/transformers_roundtrip.py, which compares the logits of what is written with those of the source.
TEST_CASE("write folders for transformers" * doctest::skip()) {
  const char* target = std::getenv("TROUPE_ROUNDTRIP_FOLDER");
  REQUIRE(target != nullptr);
  std::vector<std::filesystem::path> sources;
  for (const char* name : {"llama", "llama-hub", "llama-tied-bias", "llama-tied-bias-hub", "qwen2", "qwen2-hub",
                           "qwen3", "qwen3-hub", "llama-reward", "llama-lora"}) {
    sources.push_back(fixture_models() / name);
  }
  for (const char* name :
       {"mistral-window", "qwen2-window", "qwen3-window", "qwen2-yarn", "llama-longrope", "llama-dynamic"}) {
    sources.push_back(std::filesystem::path(TROUPE_SOURCE_DIR) / "tests/models/data/folders" / name);
  }
  if (!smollm2_gguf().empty()) sources.push_back(smollm2_gguf());
  for (const auto& source : sources) {
    const auto reader = open_checkpoint(source);
    const auto weights = load_weights(*reader, at::kFloat);
    write_hf_folder(std::filesystem::path(target) / source.stem(), reader->config(), weights, at::kFloat, reader.get());
  }
}
