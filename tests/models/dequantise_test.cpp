#include "models/formats/dequantise.h"

#include <nlohmann/json.hpp>

#include "models/formats/gguf_header.h"
#include "models/formats/hf_tensors.h"
#include "tests/doctest.h"
#include "tests/models/format_helpers.h"

using namespace troupe;
using namespace troupe::test;
using nlohmann::json;

TEST_CASE("quantised GGUF blocks unpack to what the format's own library gives") {
  const auto cases =
      json::parse(read_file(std::filesystem::path(TROUPE_SOURCE_DIR) / "tests/models/data/gguf_blocks.json"));
  REQUIRE(cases.size() == 11);
  for (const auto& item : cases) {
    CAPTURE(item["name"].get<std::string>());
    const auto hex = item["bytes"].get<std::string>();
    std::vector<std::byte> bytes;
    for (size_t i = 0; i < hex.size(); i += 2)
      bytes.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
    const auto* type = find_gguf_type(item["id"].get<uint32_t>());
    REQUIRE(type != nullptr);
    CHECK(type->name == item["name"]);
    CHECK(bytes.size() == 2 * type->block_bytes);
    std::vector<float> values(2 * type->block_size);
    dequantise_gguf(type->id, bytes.data(), 2, values.data());
    const auto expected = item["values"].get<std::vector<double>>();
    REQUIRE(expected.size() == values.size());
    double largest = 0, error = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      largest = std::max(largest, std::abs(expected[i]));
      error = std::max(error, std::abs(expected[i] - values[i]));
    }
    CHECK(largest > 0.01);
    CHECK(error <= 1e-6 * largest);
  }
}

TEST_CASE("narrow floats widen exactly") {
  std::vector<uint16_t> bits;
  for (uint32_t i = 0; i < 1 << 16; ++i) bits.push_back(static_cast<uint16_t>(i));
  const auto halves = at::from_blob(bits.data(), {1 << 16}, at::kHalf).to(at::kFloat);
  const auto bfloats = at::from_blob(bits.data(), {1 << 16}, at::kBFloat16).to(at::kFloat);
  int wrong = 0;
  const auto same = [](float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); };
  for (int i = 0; i < 1 << 16; ++i) {
    wrong += !same(half_to_float(bits[static_cast<size_t>(i)]), halves.const_data_ptr<float>()[i]);
    wrong += !same(bfloat16_to_float(bits[static_cast<size_t>(i)]), bfloats.const_data_ptr<float>()[i]);
  }
  CHECK(wrong == 0);
  std::vector<uint8_t> bytes;
  for (int i = 0; i < 256; ++i) bytes.push_back(static_cast<uint8_t>(i));
  const auto e4m3 = at::from_blob(bytes.data(), {256}, at::kFloat8_e4m3fn).to(at::kFloat);
  const auto e8m0 = at::from_blob(bytes.data(), {256}, at::kFloat8_e8m0fnu).to(at::kFloat);
  for (int i = 0; i < 256; ++i) {
    CHECK(same(float8_e4m3_to_float(bytes[static_cast<size_t>(i)]), e4m3.const_data_ptr<float>()[i]));
    CHECK(same(e8m0_to_float(bytes[static_cast<size_t>(i)]), e8m0.const_data_ptr<float>()[i]));
  }
}

TEST_CASE("FP8 weights with block scales unpack while they are read") {
  const auto folder = fixture_models() / "deepseek_v3-fp8";
  const HfTensors packed(folder, read_json_file(folder / "config.json"));
  const HfTensors plain(fixture_models() / "deepseek_v3", json::object());
  const SafetensorsFile file(folder / "model.safetensors");
  int num_packed = 0;
  for (const auto& [name, info] : packed.tensors()) {
    CAPTURE(name);
    CHECK_FALSE(name.ends_with("_scale_inv"));
    CHECK(info.shape == plain.tensors().at(name).shape);
    const auto value = packed.read(name, at::kFloat);
    if (info.dtype != "F8_E4M3") continue;
    ++num_packed;
    CHECK(at::equal(value, file.tensor(name).to(at::kFloat) * file.tensor(name + "_scale_inv")));  // one block each
    const auto original = plain.read(name, at::kFloat);
    CHECK((value - original).abs().max().item<float>() <=
          original.abs().max().item<float>() / 16);  // three bits of fraction
  }
  CHECK(num_packed == 72);
  CHECK(packed.tensors().size() == plain.tensors().size());
}

TEST_CASE("FP8 scales of several blocks and of a whole tensor") {
  const TemporaryFolder folder;
  std::map<std::string, Tensor> tensors;
  tensors["w"] = at::rand({5, 7}).to(at::kFloat8_e4m3fn);
  tensors["w_scale_inv"] = at::rand({3, 3});
  tensors["v"] = at::rand({5, 7}).to(at::kFloat8_e4m3fn);
  tensors["v_scale_inv"] = at::full({1}, 0.25);
  tensors["s"] = at::rand({2, 5, 7}).to(at::kFloat8_e4m3fn);  // experts stacked: the same blocks in each
  tensors["s_scale_inv"] = at::stack({tensors["w_scale_inv"], tensors["w_scale_inv"]});
  tensors["t"] = at::rand({2, 5, 7}).to(at::kFloat8_e4m3fn);
  tensors["t_scale_inv"] = at::rand({2, 1, 1});
  const auto stack_scales = tensors["t_scale_inv"].clone();
  write_safetensors(folder / "model.safetensors", tensors);
  const json config = {{"quantization_config", {{"quant_method", "fp8"}, {"weight_block_size", {2, 3}}}}};
  const HfTensors reader(folder.path(), config);
  const auto scales =
      tensors["w_scale_inv"].repeat_interleave(2, 0).repeat_interleave(3, 1).narrow(0, 0, 5).narrow(1, 0, 7);
  CHECK(at::equal(reader.read("w", at::kFloat), tensors["w"].to(at::kFloat) * scales));
  CHECK(at::equal(reader.read("v", at::kFloat), tensors["v"].to(at::kFloat) * 0.25));
  for (const auto& [name, factor] : {std::pair("s", scales), std::pair("t", stack_scales)}) {
    CHECK(at::equal(reader.read(name, at::kFloat), tensors[name].to(at::kFloat) * factor));
  }
  tensors["w_scale_inv"] = at::rand({3, 2});
  write_safetensors(folder / "model.safetensors", tensors);
  CHECK(
      contains(error_of([&] { HfTensors(folder.path(), config).read("w", at::kFloat); }), "w_scale_inv does not fit"));
}

TEST_CASE("MXFP4 experts unpack while they are read") {
  const auto folder = fixture_models() / "gpt_oss-mxfp4";
  const HfTensors packed(folder, read_json_file(folder / "config.json"));
  const SafetensorsFile file(folder / "model.safetensors");
  const auto table =
      at::tensor({0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0}, at::kFloat);
  for (const std::string name : {"model.layers.0.mlp.experts.down_proj", "model.layers.2.mlp.experts.gate_up_proj"}) {
    CAPTURE(name);
    const auto bytes = file.tensor(name + "_blocks").to(at::kLong);
    const auto scales = at::exp2(file.tensor(name + "_scales").to(at::kFloat) - 127);
    const auto pairs = at::stack({table.index({bytes.bitwise_and(15)}), table.index({bytes.div(16, "floor")})}, -1);
    const auto expected = (pairs.flatten(-2) * scales.unsqueeze(-1)).flatten(-2).transpose(-1, -2);
    const auto value = packed.read(name, at::kFloat);
    CHECK(value.sizes().vec() == packed.tensors().at(name).shape);
    CHECK(at::equal(value, expected));
    CHECK_FALSE(packed.tensors().contains(name + "_blocks"));
    CHECK_FALSE(packed.tensors().contains(name + "_scales"));
  }
}

TEST_CASE("prefixes of multi-modal folders fall away, and other parts are left alone") {
  for (const std::string family : {"gemma3", "llama4", "qwen3_5"}) {
    CAPTURE(family);
    const auto folder = fixture_models() / (family + "-nested");
    const HfTensors nested(folder, read_json_file(folder / "config.json"));
    const HfTensors plain(fixture_models() / family, json::object());
    CHECK(nested.left_alone() == std::vector<std::string>{"vision_tower.patch_embed.weight"});
    std::vector<std::string> names, expected;
    for (const auto& [name, info] : nested.tensors()) names.push_back(name);
    for (const auto& [name, info] : plain.tensors()) expected.push_back(name);
    CHECK(names == expected);
    CHECK(at::equal(nested.read("model.norm.weight", at::kFloat), plain.read("model.norm.weight", at::kFloat)));
  }
}
