// Rope scaling and sliding windows in config.json: what is read, what is refused, and the numbers that follow.
#include <cmath>

#include "models/blocks/rope.h"
#include "models/config.h"
#include "models/layout.h"
#include "models/verify.h"
#include "tests/doctest.h"
#include "tests/models/format_helpers.h"

using namespace troupe;
using namespace troupe::test;
using nlohmann::json;

namespace {

json small_config(const std::string& family) {
  return {{"model_type", family},     {"vocab_size", 10},       {"hidden_size", 32},
          {"intermediate_size", 12},  {"num_hidden_layers", 4}, {"num_attention_heads", 4},
          {"num_key_value_heads", 2}, {"head_dim", 8},          {"max_position_embeddings", 64}};
}

RopeConfig rope_of(json scaling, json more = json::object()) {
  auto config = small_config("llama");
  config["rope_scaling"] = std::move(scaling);
  config.update(more);
  return parse_model_config(config).rope;
}

std::string rope_error(json scaling, json more = json::object()) {
  return error_of([&] { rope_of(std::move(scaling), std::move(more)); });
}

using Windows = std::vector<int64_t>;

Windows windows_of(const std::string& family, json more) {
  auto config = small_config(family);
  config.update(more);
  return parse_model_config(config).attention_windows();
}

}  // namespace

TEST_CASE("yarn keeps quick frequencies, stretches slow ones and scales the magnitude") {
  const auto rope = rope_of({{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 16384}},
                            {{"rope_theta", 10000.0}});
  CHECK(rope.attention_factor == doctest::Approx(0.1 * std::log(4.0) + 1).epsilon(1e-15));
  // Peng et al. 2023, section 3.2: dimension i turns L / (2 pi theta^(2i/d)) times over the original length L.
  const auto got = rope_inverse_frequencies(rope, 64);
  const auto rotations_at = [](double dimension) { return 16384 / (2 * M_PI * std::pow(10000.0, dimension / 32)); };
  int low = 0, high = 31;
  while (rotations_at(low + 1) >= 32) ++low;
  while (high > 0 && rotations_at(high - 1) <= 1) --high;
  for (int i = 0; i < 32; ++i) {
    const double plain = std::pow(10000.0, -i / 32.0);
    const double ramp = std::min(1.0, std::max(0.0, (i - low) / static_cast<double>(high - low)));
    CHECK(got[i] == doctest::Approx(plain * (1 - ramp) + plain / 4 * ramp).epsilon(1e-14));
  }
  // Both magnitudes given: their quotient; attention_factor before all; without a length the model's own.
  const auto deepseek = rope_of({{"type", "yarn"}, {"factor", 40}, {"mscale", 1.0}, {"mscale_all_dim", 0.5}});
  CHECK(deepseek.attention_factor == doctest::Approx((0.1 * std::log(40.0) + 1) / (0.05 * std::log(40.0) + 1)));
  CHECK(deepseek.original_max_position_embeddings == 64);
  CHECK(rope_of({{"type", "yarn"}, {"factor", 4}, {"attention_factor", 1.5}}).attention_factor == 1.5);
  CHECK(rope_of({{"type", "yarn"}, {"original_max_position_embeddings", 16}}).factor == 4);
  const auto exact = rope_of({{"type", "yarn"}, {"factor", 4}, {"truncate", false}, {"beta_fast", 4}});
  CHECK_FALSE(exact.truncate);
  CHECK(exact.beta_fast == 4);
}

TEST_CASE("dynamic scaling and longrope follow the length of the document") {
  const auto dynamic = rope_of({{"rope_type", "dynamic"}, {"factor", 2.0}});
  CHECK(dynamic.constant_length() == 64);
  const auto plain = rope_inverse_frequencies(dynamic, 8), longer = rope_inverse_frequencies(dynamic, 8, 100);
  CHECK(rope_inverse_frequencies(dynamic, 8, 64) == plain);
  const double theta = 10000 * std::pow(2.0 * 100 / 64 - 1, 8.0 / 6);
  for (int i = 0; i < 4; ++i) {
    CHECK(plain[i] == doctest::Approx(std::pow(10000.0, -i / 4.0)).epsilon(1e-14));
    CHECK(longer[i] == doctest::Approx(std::pow(theta, -i / 4.0)).epsilon(1e-14));
  }
  const json factors = {
      {"rope_type", "longrope"}, {"short_factor", {1.0, 1.1, 1.2, 1.3}}, {"long_factor", {1, 2, 3, 4}}};
  const auto longrope = rope_of(factors, {{"original_max_position_embeddings", 16}});
  CHECK(longrope.constant_length() == 16);
  CHECK(longrope.attention_factor == doctest::Approx(std::sqrt(1 + std::log(4.0) / std::log(16.0))).epsilon(1e-15));
  const auto within = rope_inverse_frequencies(longrope, 8, 16), beyond = rope_inverse_frequencies(longrope, 8, 17);
  for (int i = 0; i < 4; ++i) {
    CHECK(within[i] == doctest::Approx(std::pow(10000.0, -i / 4.0) / (1 + 0.1 * i)).epsilon(1e-14));
    CHECK(beyond[i] == doctest::Approx(std::pow(10000.0, -i / 4.0) / (1 + i)).epsilon(1e-14));
  }
  // In a packed row each document has its own; a prompt that is shared has those of its longest child.
  PackedLayout layout{{{0, 10, -1}, {10, 3, 0}, {13, 8, 0}, {21, 5, -1}}, 26};
  CHECK(layout.document_lengths()[9] == 18);
  CHECK(layout.document_lengths()[10] == 18);
  CHECK(layout.document_lengths()[25] == 5);
  const Tensor table =
      blocks::rope_table(longrope, 8, layout.positions(), at::kDouble, at::kCPU, layout.document_lengths());
  CHECK(table[12][3].item<double>() == doctest::Approx(std::cos(12 * beyond[3]) * longrope.attention_factor));
  CHECK(table[25][7].item<double>() == doctest::Approx(std::sin(4 * within[3]) * longrope.attention_factor));
  CHECK(contains(error_of([&] { blocks::rope_table(longrope, 8, {16}, at::kFloat, at::kCPU); }), "longrope"));
}

TEST_CASE("rope settings that make no sense are named") {
  CHECK(contains(rope_error({{"type", "dynamic"}}), "factor is missing"));
  CHECK(contains(rope_error({{"type", "linear"}, {"factor", 2}, {"mscale_all_dim", 1.0}}), "mscale_all_dim"));
  CHECK(contains(rope_error({{"type", "default"}, {"mscale", 1.0}}), "mscale"));
  CHECK(contains(rope_error({{"type", "yarn"}, {"factor", 0.5}}), "factor = 0.5"));
  CHECK(contains(rope_error({{"type", "yarn"}, {"factor", 4}, {"beta_fast", -1}}), "beta_fast"));
  CHECK(contains(rope_error({{"type", "longrope"}, {"factor", 4}}), "short_factor is missing"));
  const json three = {1.0, 1.0, 1.0}, four = {1.0, 1.0, 1.0, 1.0};
  CHECK(contains(rope_error({{"type", "longrope"}, {"short_factor", four}, {"long_factor", three}}),
                 "long_factor holds 3"));
  CHECK(contains(rope_error({{"type", "longrope"}, {"short_factor", four}, {"long_factor", {1, 2, 0, 4}}}), "above 0"));
  CHECK(contains(rope_error({{"type", "longrope"}, {"short_factor", {1, "2", 3, 4}}}), "list of numbers"));
  CHECK(contains(rope_error({{"type", "yarn"}, {"factor", 4}, {"original_max_position_embeddings", 32}},
                            {{"original_max_position_embeddings", 16}}),
                 "contradicts"));
}

TEST_CASE("scaled rope is written in both forms and reads back") {
  const json four = {1.0, 1.5, 2.0, 2.5};
  for (const json& scaling : {json{{"rope_type", "yarn"}, {"factor", 4}, {"mscale", 1}, {"mscale_all_dim", 0.8}},
                              json{{"rope_type", "dynamic"}, {"factor", 2}},
                              json{{"rope_type", "longrope"},
                                   {"short_factor", four},
                                   {"long_factor", four},
                                   {"original_max_position_embeddings", 16}}}) {
    CAPTURE(scaling.dump());
    auto config = small_config("llama");
    config["rope_scaling"] = scaling;
    const auto wanted = parse_model_config(config).rope;
    auto written = write_model_config(parse_model_config(config), "float32");
    CHECK((parse_model_config(written).rope == wanted));
    auto old_form = written;
    old_form.erase("rope_parameters");
    written.erase("rope_scaling");
    written.erase("rope_theta");
    CHECK((parse_model_config(old_form).rope == wanted));
    CHECK((parse_model_config(written).rope == wanted));
  }
}

TEST_CASE("sliding windows are those of transformers, layer by layer") {
  CHECK(windows_of("llama", {{"sliding_window", 8}}) == Windows{});
  CHECK(windows_of("mistral", {{"sliding_window", 8}}) == Windows{8, 8, 8, 8});
  CHECK(windows_of("mistral", {{"sliding_window", nullptr}}) == Windows{});
  CHECK(windows_of("mistral", json::object()) == Windows{4096, 4096, 4096, 4096});  // the family's default
  CHECK(windows_of("qwen2", {{"sliding_window", 8}}) == Windows{});                 // without use_sliding_window
  json sliding = {{"use_sliding_window", true}, {"sliding_window", 8}, {"max_window_layers", 3}};
  CHECK(windows_of("qwen2", sliding) == Windows{0, 0, 0, 8});
  CHECK(windows_of("qwen3", sliding) == Windows{0, 0, 0, 8});
  sliding["max_window_layers"] = 4;  // no layer is left to slide
  CHECK(windows_of("qwen2", sliding) == Windows{});
  sliding["layer_types"] = {"sliding_attention", "full_attention", "full_attention", "sliding_attention"};
  CHECK(windows_of("qwen2", sliding) == Windows{8, 0, 0, 8});
  sliding["layer_types"] = {"sliding_attention"};
  CHECK(contains(error_of([&] { windows_of("qwen2", sliding); }), "layer_types"));
  CHECK(windows_of("qwen3_moe", {{"use_sliding_window", true},
                                 {"sliding_window", nullptr},
                                 {"num_experts", 4},
                                 {"num_experts_per_tok", 2},
                                 {"moe_intermediate_size", 8}}) == Windows{});
  CHECK(contains(error_of([&] { windows_of("mistral", {{"sliding_window", -4}}); }), "sliding_window"));
  for (const json& more : {json::object(), json{{"sliding_window", 8}}, json{{"sliding_window", nullptr}}}) {
    auto config = small_config("mistral");
    config.update(more);
    const auto read = parse_model_config(config);
    CHECK(parse_model_config(write_model_config(read, "float32")).attention_windows() == read.attention_windows());
  }
}

TEST_CASE("folders with windows and scaled rope give the logits and gradients of transformers") {
  const std::filesystem::path folders = TROUPE_SOURCE_DIR "/tests/models/data/folders";
  for (const char* name :
       {"mistral-window", "qwen2-window", "qwen3-window", "qwen2-yarn", "llama-longrope", "llama-dynamic"}) {
    const auto result = verify_model_folder(folders / name);
    CHECK_MESSAGE(result.ok, name, ": ", result.error);
    CHECK(result.logits_max_abs > 0);
    CHECK(result.grad_max_abs > 0);
  }
}
