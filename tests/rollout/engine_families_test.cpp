// Forms of the families that no fixture has: the engine's log-probabilities against the trainer's network in float64.
#include <fstream>

#include "models/decoder.h"
#include "tests/models/family_folders.h"
#include "tests/rollout/engine_helpers.h"

namespace troupe::engine_tests {
namespace {

using nlohmann::json;

/// A fixture's configuration with changes.
ModelConfig changed(const std::string& folder, const json& changes) {
  std::ifstream file(testing::family_fixtures() / folder / "config.json");
  auto config = json::parse(file);
  config.update(changes);
  return parse_model_config(config);
}

Tensor trainer_logits(const ModelConfig& config, const WeightSnapshot& snapshot, const std::vector<int32_t>& tokens) {
  Decoder decoder(config);
  for (const auto& [name, tensor] : snapshot.tensors) decoder.bind(name, tensor.to(at::kDouble));
  const auto length = static_cast<int32_t>(tokens.size());
  return decoder.logits(
      decoder.forward(at::tensor(std::vector<int64_t>(tokens.begin(), tokens.end())), {{{0, length, -1}}, length}));
}

/// Samples from an engine of that configuration, and compares what it says of its tokens with the trainer.
void check_engine(const ModelConfig& config) {
  const auto snapshot = random_weights(config, 0, 3);
  EngineOptions options = small_options();
  options.prefill_chunk_tokens = 7;
  options.num_threads = 2;
  Engine engine(config, options, nullptr);
  engine.set_weights(pack_model(config, snapshot, at::kFloat, 2));
  const auto trajectories = generate_all(engine, make_requests(3, 2, 1.0, 14));
  CHECK(trajectories.size() == 6);
  for (const auto& trajectory : trajectories) {
    const Tensor expected = at::log_softmax(trainer_logits(config, snapshot, trajectory.tokens), 1);
    for (size_t t = static_cast<size_t>(trajectory.prompt_length); t < trajectory.tokens.size(); ++t) {
      const double wanted = expected[static_cast<int64_t>(t) - 1][trajectory.tokens[t]].item<double>();
      CHECK(std::abs(trajectory.log_probs[t] - wanted) < 2e-4);
    }
  }
}

TEST_CASE("latent attention whose plain heads are wider than what is kept of a token") {
  check_engine(changed("deepseek_v3", {{"qk_nope_head_dim", 40}, {"kv_lora_rank", 8}, {"qk_rope_head_dim", 4}}));
}

TEST_CASE("latent attention whose queries are projected at once") {
  const auto config = changed("deepseek_v3", {{"q_lora_rank", nullptr}});
  CHECK(config.latent.query_rank == 0);
  check_engine(config);
}

TEST_CASE("soft-capped logits") {
  const auto config = changed("gemma3", {{"final_logit_softcapping", 5.0}});
  auto plain = config;
  plain.logit_softcap = 0;
  const auto snapshot = random_weights(config, 0, 3);
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 5};
  const Tensor capped = trainer_logits(config, snapshot, tokens), free = trainer_logits(plain, snapshot, tokens);
  CHECK((free - capped).abs().max().item<double>() > 0.1);  // it bites
  CHECK(at::allclose(capped, (free / 5).tanh() * 5));
  check_engine(config);
}

TEST_CASE("the delta rule with experts") {
  const auto config = changed("qwen3_5", {{"model_type", "qwen3_5_moe_text"},
                                          {"num_experts", 6},
                                          {"num_experts_per_tok", 2},
                                          {"moe_intermediate_size", 32},
                                          {"shared_expert_intermediate_size", 24}});
  CHECK(config.has_experts());
  CHECK(config.moe.shared_gate);
  check_engine(config);
}

}  // namespace
}  // namespace troupe::engine_tests
