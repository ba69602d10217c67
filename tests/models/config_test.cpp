#include "models/config.h"

#include "base/file.h"
#include "tests/doctest.h"
#include "tests/models/format_helpers.h"

using namespace troupe;
using namespace troupe::test;
using nlohmann::json;

namespace {

json small_config(const std::string& family) {
  return {{"model_type", family},     {"vocab_size", 10},       {"hidden_size", 8},
          {"intermediate_size", 12},  {"num_hidden_layers", 2}, {"num_attention_heads", 4},
          {"num_key_value_heads", 2}, {"head_dim", 2},          {"max_position_embeddings", 64}};
}

json fixture_config(const std::string& name) { return json::parse(read_file(fixture_models() / name / "config.json")); }

bool same_model(const ModelConfig& a, const ModelConfig& b) {
  const auto rest = [](ModelConfig config) {
    config.source = nullptr;
    return std::tuple(config.model_type, config.vocab_size, config.hidden_size, config.intermediate_size,
                      config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads, config.head_dim,
                      config.max_position_embeddings, config.rms_norm_eps, config.tie_word_embeddings,
                      config.attention_bias, config.attention_output_bias, config.mlp_bias, config.query_key_norm,
                      config.num_labels, config.layers, config.bos_token_id, config.eos_token_ids);
  };
  return rest(a) == rest(b) && a.rope == b.rope;
}

}  // namespace

TEST_CASE("both published forms of a configuration mean the same model") {
  for (const std::string family : {"llama", "llama-tied-bias", "qwen2", "qwen3"}) {
    CAPTURE(family);
    const auto modern = parse_model_config(fixture_config(family));
    const auto hub = parse_model_config(fixture_config(family + "-hub"));
    CHECK(same_model(modern, hub));
    const auto expected = json::parse(read_file(fixture_models() / family / "expected.json"));
    CHECK(modern.num_parameters() == expected["parameters"].get<int64_t>());
  }
}

TEST_CASE("what is written reads back, in either form alone") {
  for (const std::string name : {"llama", "llama-tied-bias", "qwen2-hub", "qwen3", "llama-reward"}) {
    CAPTURE(name);
    const auto config = parse_model_config(fixture_config(name));
    auto written = write_model_config(config, "bfloat16");
    CHECK(same_model(parse_model_config(written), config));
    auto old_form = written, new_form = written;
    old_form.erase("rope_parameters");
    new_form.erase("rope_theta");
    new_form.erase("rope_scaling");
    CHECK(same_model(parse_model_config(old_form), config));
    CHECK(same_model(parse_model_config(new_form), config));
    CHECK(written["dtype"] == "bfloat16");
    CHECK(written["torch_dtype"] == "bfloat16");
    CHECK(written["pad_token_id"] == config.source["pad_token_id"]);  // keys of no meaning here survive
  }
}

TEST_CASE("families differ in biases, norms and head size") {
  const auto qwen2 = parse_model_config(small_config("qwen2"));
  CHECK(qwen2.attention_bias);
  CHECK_FALSE(qwen2.attention_output_bias);
  auto without_head_dim = small_config("qwen3");
  without_head_dim.erase("head_dim");
  const auto qwen3 = parse_model_config(without_head_dim);
  CHECK(qwen3.head_dim == 128);
  CHECK(qwen3.query_key_norm);
  without_head_dim["model_type"] = "mistral";
  without_head_dim["head_dim"] = nullptr;
  CHECK(parse_model_config(without_head_dim).head_dim == 2);
}

TEST_CASE("parameters come in one fixed order with their units") {
  auto source = small_config("qwen3");
  source["tie_word_embeddings"] = false;
  const auto specs = parameter_specs(parse_model_config(source));
  CHECK(specs.front().name == "model.embed_tokens.weight");
  CHECK(specs.front().unit == 0);
  CHECK(specs[1].name == "model.layers.0.input_layernorm.weight");
  CHECK(specs[1].unit == 1);
  CHECK(specs[3].name == "model.layers.0.self_attn.k_proj.weight");
  CHECK(specs[3].shape == std::vector<int64_t>{4, 8});
  CHECK(specs[6].name == "model.layers.0.self_attn.q_norm.weight");
  CHECK(specs[6].shape == std::vector<int64_t>{2});
  CHECK(specs[specs.size() - 2].name == "model.norm.weight");
  CHECK(specs.back().name == "lm_head.weight");
  CHECK(specs.back().unit == 3);
  source["architectures"] = {"Qwen3ForSequenceClassification"};
  source["id2label"] = {{"0", "LABEL_0"}};
  const auto reward = parameter_specs(parse_model_config(source));
  CHECK(reward.back().name == "score.weight");
  CHECK(reward.back().shape == std::vector<int64_t>{1, 8});
}

TEST_CASE("a key that changes the mathematics and is not supported is named") {
  const auto message = [](const char* family, const char* key, json value) {
    auto config = small_config(family);
    config[key] = std::move(value);
    return error_of([&] { parse_model_config(config); });
  };
  CHECK(contains(message("llama", "hidden_act", "relu"), "hidden_act"));
  CHECK(contains(message("llama", "partial_rotary_factor", 0.5), "partial_rotary_factor"));
  CHECK(contains(message("llama", "logits_scaling", 8), "logits_scaling"));
  CHECK(contains(message("llama", "attention_multiplier", 0.1), "attention_multiplier"));
  CHECK(contains(message("qwen3", "num_experts", 8), "num_experts"));
  CHECK(contains(message("mistral", "sliding_window", 0), "sliding_window"));
  CHECK(contains(message("llama", "quantization_config", {{"quant_method", "gptq"}}), "gptq"));
  CHECK(contains(message("llama", "vocab_size", -5), "vocab_size"));
  CHECK(contains(message("llama", "vocab_size", "many"), "vocab_size"));
  CHECK(contains(message("llama", "num_key_value_heads", 3), "num_key_value_heads"));
  CHECK(contains(message("llama", "rms_norm_eps", true), "rms_norm_eps"));
  CHECK(contains(message("gpt_neo", "hidden_act", "silu"), "known are llama, mistral, qwen2, qwen3"));
  CHECK(contains(message("llama", "architectures", {"LlamaForTokenClassification"}), "LlamaForTokenClassification"));
  CHECK(contains(message("llama", "rope_scaling", {{"type", "linear"}}), "factor is missing"));
  CHECK(contains(message("llama", "rope_scaling", 4), "rope_scaling must be an object"));
  CHECK(contains(message("qwen3", "layer_types", {"full_attention", "chunked_attention"}), "chunked_attention"));
  CHECK(contains(message("llama", "rope_scaling", {{"type", "default"}, {"mrope_section", {1}}}), "mrope_section"));
  // Each at a value that does nothing.
  CHECK(message("llama", "logits_scaling", 1) == "no error");
  CHECK(message("llama", "final_logit_softcapping", nullptr) == "no error");
}

TEST_CASE("forms of rope: nested, by layer kind, contradicting") {
  auto config = small_config("qwen3");
  config["rope_parameters"] = {{"full_attention", {{"rope_type", "linear"}, {"factor", 2.0}, {"rope_theta", 5000.0}}}};
  const auto rope = parse_model_config(config).rope;
  CHECK(rope.kind == "linear");
  CHECK(rope.theta == 5000);
  const auto frequencies = rope_inverse_frequencies(rope, 4);
  CHECK(frequencies[0] == 0.5);
  CHECK(frequencies[1] == doctest::Approx(0.5 / std::sqrt(5000.0)).epsilon(1e-14));
  config["rope_theta"] = 4000.0;
  CHECK(contains(error_of([&] { parse_model_config(config); }), "contradicts"));
  config.erase("rope_parameters");
  config["rope_scaling"] = {{"type", "linear"}, {"factor", 3}};
  CHECK(parse_model_config(config).rope.factor == 3);
  CHECK(parse_model_config(config).rope.theta == 4000);
}

TEST_CASE("a text model inside a multi-modal configuration") {
  const json outer = {
      {"model_type", "mistral3"}, {"tie_word_embeddings", true}, {"text_config", small_config("mistral")}};
  const auto config = parse_model_config(outer);
  CHECK(config.model_type == "mistral");
  CHECK(config.tie_word_embeddings);
  CHECK(parse_model_config(fixture_config("gemma3-nested")).model_type == "gemma3_text");
}

TEST_CASE("B058 llama3 rope scaling is honoured and unknown kinds are refused") {
  RopeConfig rope;
  rope.kind = "llama3";
  rope.theta = 500000;
  rope.factor = 32;
  rope.original_max_position_embeddings = 8192;
  const auto scaled = rope_inverse_frequencies(rope, 64);
  rope.kind = "default";
  const auto plain = rope_inverse_frequencies(rope, 64);
  const auto ratio = [&](size_t i) { return scaled[i] / plain[i]; };
  for (size_t i = 0; i <= 14; ++i) CHECK(ratio(i) == 1.0);
  CHECK(ratio(15) == doctest::Approx(0.605573).epsilon(1e-6));
  CHECK(ratio(16) == doctest::Approx(0.303743).epsilon(2e-6));
  CHECK(ratio(17) == doctest::Approx(0.103448).epsilon(5e-6));
  for (size_t i = 18; i < 32; ++i) CHECK(ratio(i) == doctest::Approx(0.03125).epsilon(1e-12));
  auto config = small_config("llama");
  config["rope_scaling"] = {{"rope_type", "proportional"}, {"factor", 4}};
  const auto message = error_of([&] { parse_model_config(config); });
  CHECK(contains(message, "\"proportional\" is not known"));
  CHECK(contains(message, "default, linear, dynamic, yarn, longrope, llama3"));
}
