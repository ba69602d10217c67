// Families: what their config.json says and leaves out, what is refused, what is written, and that a packed row gives
// every family what single rows give.
#include <cmath>
#include <cstdlib>
#include <fstream>

#include "models/decoder.h"
#include "models/formats/checkpoint_reader.h"
#include "tests/doctest.h"
#include "tests/models/family_folders.h"
#include "tests/models/format_helpers.h"
#include "tests/models/tiny_model.h"

using namespace troupe;
using namespace troupe::test;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

const fs::path kModels = testing::family_fixtures();

json config_of(const std::string& folder) {
  std::ifstream file(kModels / folder / "config.json");
  return json::parse(file);
}

ModelConfig with(const std::string& folder, const json& changes, const std::vector<std::string>& without = {}) {
  auto config = config_of(folder);
  if (!changes.is_null()) config.update(changes);
  for (const auto& key : without) config.erase(key);
  return parse_model_config(config);
}

std::string refusal(const std::string& folder, const json& changes) {
  return error_of([&] { with(folder, changes); });
}

TensorMap double_weights(const std::string& folder) {
  const auto reader = open_checkpoint(kModels / folder);
  auto weights = load_weights(*reader, at::kDouble);
  for (auto& [name, weight] : weights) weight = weight.clone().requires_grad_();
  return weights;
}

/// Sum of the hidden states of `tokens` times fixed numbers, and its gradients.
std::map<std::string, Tensor> gradients(const ModelConfig& config, TensorMap& weights, const Tensor& tokens,
                                        const PackedLayout& layout, const Tensor& factors, Tensor& hidden) {
  for (auto& [name, weight] : weights) weight.mutable_grad() = Tensor();
  Decoder decoder(config);
  decoder.bind_all(weights);
  hidden = decoder.forward(tokens, layout);
  (hidden * factors).sum().backward();
  std::map<std::string, Tensor> result;
  for (const auto& [name, weight] : weights) {
    if (weight.grad().defined()) result[name] = weight.grad().clone();
  }
  return result;
}

}  // namespace

TEST_CASE("what a family writes reads back as the same network, in both forms") {
  for (const auto& entry : fs::directory_iterator(kModels)) {
    if (!fs::exists(entry.path() / "config.json")) continue;
    CAPTURE(entry.path().string());
    std::ifstream file(entry.path() / "config.json");
    const auto config = parse_model_config(json::parse(file));
    auto written = write_model_config(config, "float32");
    for (const bool old_form : {false, true}) {
      if (old_form) written.erase("rope_parameters");
      const auto again = parse_model_config(written);
      CHECK((again.layers == config.layers));
      CHECK((again.rope == config.rope));
      CHECK((again.local_rope == config.local_rope));
      CHECK(again.rotated_dim() == config.rotated_dim());
      CHECK(again.softmax_scale() == config.softmax_scale());
      CHECK(again.num_parameters() == config.num_parameters());
      CHECK(again.intermediate_size == config.intermediate_size);
    }
  }
}

TEST_CASE("keys that are left out have the values of transformers") {
  CHECK(with("smollm3", {}, {"no_rope_layers", "layer_types"}).layer(1).rope == LayerRope::kNone);
  const auto olmo = with("olmo3", {}, {"layer_types"});
  CHECK((olmo.attention_windows() == std::vector<int64_t>{8, 8, 8}));
  const auto gemma = with("gemma3", {{"num_hidden_layers", 6}}, {"layer_types", "rope_parameters", "head_dim"});
  CHECK((gemma.attention_windows() == std::vector<int64_t>{8, 8, 8, 8, 8, 0}));
  CHECK(gemma.head_dim == 256);
  CHECK(gemma.rope.theta == 1000000);
  CHECK(gemma.local_rope.theta == 10000);
  const auto oss = with("gpt_oss", {}, {"layer_types", "rope_parameters", "attention_bias"});
  CHECK((oss.attention_windows() == std::vector<int64_t>{8, 0, 8}));
  CHECK(oss.rope.kind == "yarn");
  CHECK(oss.rope.factor == 32);
  CHECK(oss.attention_bias);
  CHECK(with("glm4_moe", {}, {"partial_rotary_factor", "rope_parameters"}).rotated_dim() == 8);
  CHECK(with("deepseek_v3", {{"q_lora_rank", nullptr}}).latent.query_rank == 0);
  CHECK(with("deepseek_v3", {{"model_type", "kimi_k2"}}).model_type == "deepseek_v3");
  CHECK(with("llama4", {}, {"moe_layers", "interleave_moe_layer_step"}).layer(0).has_experts);
  CHECK(with("qwen3_next", {}, {"layer_types"}).layer(2).mixer == Mixer::kDeltaNet);
  CHECK(with("deepseek_v3", {}, {"num_nextn_predict_layers"}).num_extra_layers == 1);
  CHECK(parse_model_config({{"model_type", "gemma3"}, {"text_config", {{"model_type", "gemma3_text"}}}}).vocab_size ==
        262208);
}

TEST_CASE("what a family does not know is refused by name") {
  CHECK(contains(refusal("deepseek_v3", {{"scoring_func", "softmax"}}), "scoring_func"));
  CHECK(contains(refusal("deepseek_v3", {{"topk_method", "greedy"}}), "topk_method"));
  CHECK(contains(refusal("deepseek_v3", {{"topk_group", 9}}), "topk_group"));
  CHECK(contains(refusal("gemma3", {{"hidden_activation", "relu"}}), "hidden_activation"));
  CHECK(contains(refusal("gemma3", {{"use_bidirectional_attention", true}}), "use_bidirectional_attention"));
  CHECK(contains(refusal("mixtral", {{"router_jitter_noise", 0.1}}), "router_jitter_noise"));
  CHECK(contains(refusal("mixtral", {{"num_experts_per_tok", 5}}), "num_experts_per_tok"));
  CHECK(contains(refusal("llama4", {{"attention_chunk_size", 0}}), "attention_chunk_size"));
  CHECK(contains(refusal("qwen3_next", {{"linear_num_value_heads", 5}}), "linear_num_value_heads"));
  CHECK(contains(refusal("qwen3_5", {{"attn_output_gate", false}}), "attn_output_gate"));
  CHECK(contains(refusal("olmo3", {{"layer_types", {"full_attention", "full_attention", "linear_attention"}}}),
                 "linear_attention"));
  CHECK(contains(refusal("smollm3", {{"num_experts", 4}}), "num_experts"));
  CHECK(contains(refusal("smollm3", {{"no_rope_layers", {1}}}), "no_rope_layers"));
  CHECK(contains(refusal("gemma3", {{"rope_local_base_freq", 500.0}}), "rope_local_base_freq"));
  CHECK(contains(refusal("qwen3_5", {{"output_gate_type", "sigmoid"}}), "output_gate_type"));
  CHECK(with("qwen3_5", {{"output_gate_type", "swish"}}).attention_gate);
  CHECK(contains(refusal("gpt_oss", {{"swiglu_limit", 0.0}}), "swiglu_limit"));
  CHECK(with("gpt_oss", {{"swiglu_limit", 5.0}}).moe.clamp_limit == 5);
  CHECK(contains(refusal("llama4", {{"attn_temperature_tuning", "yes"}}), "attn_temperature_tuning"));
}

TEST_CASE("rope_parameters of one kind of layer leave the other its own theta, unscaled") {
  const json linear = {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 2e6}};
  const auto global = with("gemma3", {{"rope_parameters", {{"full_attention", linear}}}});
  CHECK(global.rope.kind == "linear");
  CHECK(global.rope.theta == 2e6);
  CHECK(global.local_rope.kind == "default");
  CHECK(global.local_rope.theta == 1e4);
  const json null_local = {{"full_attention", linear}, {"sliding_attention", nullptr}};
  CHECK(with("gemma3", {{"rope_parameters", null_local}, {"rope_local_base_freq", 5e3}}).local_rope.theta == 5e3);
  const auto local = with("gemma3", {{"rope_parameters", {{"sliding_attention", {{"rope_theta", 3e4}}}}}});
  CHECK(local.rope.kind == "default");
  CHECK(local.rope.theta == 1e6);
  CHECK(local.local_rope.theta == 3e4);
  const json without_theta = {{"full_attention", {{"rope_type", "default"}}}, {"sliding_attention", json::object()}};
  const auto outer = with("gemma3", {{"rope_parameters", without_theta}, {"rope_theta", 7e5}});
  CHECK(outer.rope.theta == 7e5);
  CHECK(outer.local_rope.theta == 1e4);
  const auto olmo = with("olmo3", {{"rope_parameters", {{"full_attention", linear}}}});
  CHECK(olmo.rope.kind == "linear");
  CHECK(olmo.local_rope.kind == "default");
  CHECK(contains(error_of([&] {
                   with("qwen3_moe", {{"rope_parameters", {{"sliding_attention", {{"rope_theta", 3e4}}}}}});
                 }),
                 "differ between kinds of layer"));
}

TEST_CASE("Llama 4 as it is published: a flag given as a number, and a rope with a hard step") {
  CHECK(with("llama4", {{"attn_temperature_tuning", 4}}).temperature_scale > 0);
  CHECK(with("llama4", {{"attn_temperature_tuning", 0}}).temperature_scale == 0);
  CHECK(with("llama4", {{"attn_temperature_tuning", false}}).temperature_scale == 0);
  CHECK(write_model_config(with("llama4", {{"attn_temperature_tuning", 4}}), "float32").at("attn_temperature_tuning") ==
        true);
  std::ifstream file(TROUPE_SOURCE_DIR "/configs/models/llama-4-scout/config.json");
  const auto scout = parse_model_config(json::parse(file));
  CHECK(scout.temperature_scale > 0);
  CHECK(scout.rope.kind == "llama3");
  const auto frequencies = rope_inverse_frequencies(scout.rope, 128);
  int num_kept = 0;
  for (int i = 0; i < 64; ++i) {
    const double plain = std::pow(500000.0, -i / 64.0);
    const bool turns_once = 8192 >= 2 * M_PI / plain;
    num_kept += turns_once;
    CHECK(frequencies[i] == doctest::Approx(turns_once ? plain : plain / 16).epsilon(1e-14));
  }
  CHECK(num_kept > 0);
  CHECK(num_kept < 64);
}

TEST_CASE("qwen3_5 with experts reads its keys, and what it writes reads back") {
  const json changes = {{"model_type", "qwen3_5_moe_text"},
                        {"num_experts", 6},
                        {"num_experts_per_tok", 2},
                        {"moe_intermediate_size", 32},
                        {"shared_expert_intermediate_size", 24}};
  for (const char* type : {"qwen3_5_moe_text", "qwen3_5_moe"}) {
    auto own = changes;
    own["model_type"] = type;
    const auto config = with("qwen3_5", own);
    CHECK(config.model_type == "qwen3_5_moe_text");
    CHECK(config.moe.num_experts == 6);
    CHECK(config.moe.shared_intermediate_size == 24);
    CHECK(config.layer(0).has_experts);
    CHECK(config.layer(0).mixer == Mixer::kDeltaNet);
    CHECK(config.layer(2).mixer == Mixer::kAttention);
    const auto written = write_model_config(config, "float32");
    CHECK(written.at("architectures").at(0) == "Qwen3_5MoeForCausalLM");
    const auto again = parse_model_config(written);
    CHECK((again.layers == config.layers));
    CHECK(again.num_parameters() == config.num_parameters());
  }
}

TEST_CASE("every family: prompts that completions share give the numbers and gradients of separate rows") {
  const PackedLayout shared{{{0, 11, -1}, {11, 4, 0}, {15, 7, 0}, {22, 9, -1}}, 31};
  at::manual_seed(3);
  const Tensor tokens = at::randint(0, 160, {31}, at::kLong);
  const auto part = [&](int64_t begin, int64_t count) { return tokens.narrow(0, begin, count); };
  const Tensor separate = at::cat({part(0, 11), part(11, 4), part(0, 11), part(15, 7), part(22, 9)});
  const auto layout = testing::documents({15, 18, 9});
  for (const auto& folder : testing::family_folders()) {
    CAPTURE(folder);
    const auto config = parse_model_config(config_of(folder));
    auto weights = double_weights(folder);
    const Tensor factors = at::randn({31, config.hidden_size}, at::kDouble);
    const auto factor = [&](int64_t begin, int64_t count) { return factors.narrow(0, begin, count); };
    const Tensor none = at::zeros({11, config.hidden_size}, at::kDouble);
    const Tensor spread = at::cat({factor(0, 11), factor(11, 4), none, factor(15, 7), factor(22, 9)});
    Tensor packed_hidden, separate_hidden;
    const auto packed = gradients(config, weights, tokens, shared, factors, packed_hidden);
    const auto single = gradients(config, weights, separate, layout, spread, separate_hidden);
    const auto rows = [&](int64_t begin, int64_t count) { return separate_hidden.narrow(0, begin, count); };
    const Tensor wanted = at::cat({rows(0, 15), rows(26, 7), rows(33, 9)});
    CHECK(testing::relative_difference(packed_hidden, wanted) < 1e-12);
    CHECK(packed.size() == single.size());
    for (const auto& [name, gradient] : single) {
      CAPTURE(name);
      CHECK(testing::relative_difference(packed.at(name), gradient) < 1e-9);
    }
  }
}
