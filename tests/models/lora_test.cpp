#include <nlohmann/json.hpp>

#include "models/formats/checkpoint_reader.h"
#include "models/formats/safetensors.h"
#include "tests/doctest.h"
#include "tests/models/format_helpers.h"

using namespace troupe;
using namespace troupe::test;
using nlohmann::json;

namespace {

/// A copy of the fixture's adapter whose settings can be changed; its base stays where it is.
class Adapter {
 public:
  Adapter() : settings(json::parse(read_file(fixture_models() / "llama-lora/adapter_config.json"))) {
    settings["base_model_name_or_path"] = std::filesystem::absolute(fixture_models() / "llama").string();
    const SafetensorsFile file(fixture_models() / "llama-lora/adapter_model.safetensors");
    for (const auto& [name, entry] : file.entries()) tensors[name] = file.tensor(name).clone();
  }
  std::unique_ptr<CheckpointReader> open() const {
    write_file_synced(folder_ / "adapter_config.json", settings.dump());
    write_safetensors(folder_ / "adapter_model.safetensors", tensors);
    return open_checkpoint(folder_.path());
  }
  std::string error() const {
    return error_of([&] { open(); });
  }
  json settings;
  std::map<std::string, Tensor> tensors;

 private:
  TemporaryFolder folder_;
};

const std::string kQuery = "model.layers.1.self_attn.q_proj";

}  // namespace

TEST_CASE("a LoRA adapter is merged into its base") {
  const auto reader = open_checkpoint(fixture_models() / "llama-lora");
  const auto weights = load_weights(*reader, at::kFloat);
  const SafetensorsFile base(fixture_models() / "llama/model.safetensors");
  const SafetensorsFile adapter(fixture_models() / "llama-lora/adapter_model.safetensors");
  int num_changed = 0;
  for (const auto& [name, tensor] : weights) {
    CAPTURE(name);
    const auto module = "base_model.model." + name.substr(0, name.rfind('.'));
    auto expected = base.tensor(name).to(at::kDouble);
    if (adapter.entries().contains(module + ".lora_A.weight")) {
      ++num_changed;
      const auto product = at::matmul(adapter.tensor(module + ".lora_B.weight").to(at::kDouble),
                                      adapter.tensor(module + ".lora_A.weight").to(at::kDouble));
      CHECK(product.abs().max().item<double>() > 1e-3);
      expected += 10.0 / 4.0 * product;
    }
    CHECK(at::allclose(tensor.to(at::kDouble), expected, 1e-6, 1e-6));
  }
  CHECK(num_changed == 10);  // q, v and down of three layers, and the head
}

TEST_CASE("scaling by rank-stabilised LoRA and by patterns") {
  Adapter adapter;
  const auto base = open_checkpoint(fixture_models() / "llama")->read(kQuery + ".weight", at::kFloat);
  const auto change = [&] {
    return open_checkpoint(fixture_models() / "llama-lora")->read(kQuery + ".weight", at::kFloat) - base;
  }();
  adapter.settings["use_rslora"] = true;  // 10 / sqrt(4) instead of 10 / 4
  CHECK(at::allclose(adapter.open()->read(kQuery + ".weight", at::kFloat) - base, 2 * change, 1e-4, 1e-5));
  adapter.settings["use_rslora"] = false;
  adapter.settings["alpha_pattern"] = {{"layers\\.1\\.self_attn\\.q_proj", 30}};
  CHECK(at::allclose(adapter.open()->read(kQuery + ".weight", at::kFloat) - base, 3 * change, 1e-4, 1e-5));
  adapter.settings["alpha_pattern"] = {{"proj", 30}};  // not the whole of a name part
  CHECK(at::allclose(adapter.open()->read(kQuery + ".weight", at::kFloat) - base, change, 1e-4, 1e-5));
  adapter.settings["alpha_pattern"] = {{"(", 30}};
  CHECK(contains(error_of([&] { adapter.open()->read(kQuery + ".weight", at::kFloat); }), "\"(\" is not a pattern"));
}

TEST_CASE("an adapter of the embedding, and modules saved whole") {
  Adapter adapter;
  adapter.tensors["base_model.model.model.embed_tokens.lora_embedding_A"] = at::rand({4, 160});
  adapter.tensors["base_model.model.model.embed_tokens.lora_embedding_B"] = at::rand({48, 4});
  adapter.tensors["base_model.model.model.norm.weight"] = at::rand({48});
  const auto reader = adapter.open();
  const auto base = open_checkpoint(fixture_models() / "llama");
  const auto change = at::matmul(adapter.tensors["base_model.model.model.embed_tokens.lora_embedding_B"],
                                 adapter.tensors["base_model.model.model.embed_tokens.lora_embedding_A"])
                          .t();
  const auto expected = base->read("model.embed_tokens.weight", at::kFloat) + 2.5 * change;
  CHECK(at::allclose(reader->read("model.embed_tokens.weight", at::kFloat), expected));
  CHECK(
      at::equal(reader->read("model.norm.weight", at::kFloat), adapter.tensors["base_model.model.model.norm.weight"]));
}

TEST_CASE("adapters that cannot be merged name the reason") {
  const auto with = [](const char* key, json value) {
    Adapter adapter;
    adapter.settings[key] = std::move(value);
    return adapter.error();
  };
  CHECK(contains(with("use_dora", true), "use_dora"));
  CHECK(contains(with("peft_type", "IA3"), "IA3"));
  CHECK(contains(with("fan_in_fan_out", true), "fan_in_fan_out"));
  CHECK(contains(with("target_parameters", {"a"}), "target_parameters"));
  CHECK(contains(with("lora_alpha", nullptr), "lora_alpha"));
  CHECK(contains(with("base_model_name_or_path", "nowhere/to-be-found"), "base_model_name_or_path"));
  CHECK(contains(
      with("base_model_name_or_path", std::filesystem::absolute(fixture_models() / "llama-tied-bias").string()),
      "tied"));
  Adapter half;
  half.tensors.erase("base_model.model." + kQuery + ".lora_B.weight");
  CHECK(contains(half.error(), kQuery + " lacks one of A and B"));
  Adapter misshaped;
  misshaped.tensors["base_model.model." + kQuery + ".lora_B.weight"] = at::rand({47, 4});
  CHECK(contains(misshaped.error(), kQuery + " does not fit"));
}
