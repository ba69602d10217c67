// A small random llama and plain at:: mathematics for it, for the tests of the generation engine.
#pragma once

#include "base/error.h"
#include "models/config.h"
#include "rollout/engine.h"
#include "rollout/generate.h"
#include "rollout/packed_model.h"
#include "tests/doctest.h"

namespace troupe::engine_tests {

inline ModelConfig small_config() {
  ModelConfig config;
  config.model_type = "llama";
  config.vocab_size = 131;
  config.hidden_size = 48;
  config.intermediate_size = 100;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 6;
  config.num_key_value_heads = 2;
  config.head_dim = 8;
  config.max_position_embeddings = 256;
  config.tie_word_embeddings = true;
  return config;
}

inline WeightSnapshot random_weights(const ModelConfig& config, int64_t version, uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  WeightSnapshot snapshot;
  snapshot.version = version;
  for (const auto& spec : parameter_specs(config)) {
    Tensor tensor = at::empty(spec.shape, at::kFloat).normal_(0, spec.shape.size() == 1 ? 0.1 : 0.15, generator);
    if (spec.shape.size() == 1) tensor += 1;
    snapshot.tensors[spec.name] = tensor;
  }
  return snapshot;
}

inline Tensor norm(const Tensor& x, const Tensor& weight, double eps) {
  return x * at::rsqrt(x.pow(2).mean(-1, true) + eps) * weight;
}

/// Logits [T, V] of one sequence in float64, written from the papers: nothing of the engine or the trainer in it.
inline Tensor reference_logits(const ModelConfig& config, const WeightSnapshot& snapshot,
                               const std::vector<int32_t>& tokens) {
  const auto w = [&](const std::string& name) { return snapshot.tensors.at(name).to(at::kDouble); };
  const int64_t length = static_cast<int64_t>(tokens.size()), d = config.head_dim;
  const Tensor ids = at::tensor(std::vector<int64_t>(tokens.begin(), tokens.end()));
  Tensor x = w("model.embed_tokens.weight").index_select(0, ids);
  const Tensor frequencies = at::tensor(rope_inverse_frequencies(config.rope, d), at::kDouble);
  const Tensor angles = at::arange(length, at::kDouble).unsqueeze(1) * frequencies.unsqueeze(0);
  const Tensor cosines = at::cat({angles.cos(), angles.cos()}, 1).unsqueeze(0);
  const Tensor sines = at::cat({angles.sin(), angles.sin()}, 1).unsqueeze(0);
  const auto rotate = [&](const Tensor& heads) {
    const Tensor turned = at::cat({-heads.slice(-1, d / 2, d), heads.slice(-1, 0, d / 2)}, -1);
    return heads * cosines + turned * sines;
  };
  const Tensor mask = at::ones({length, length}, at::kDouble).triu(1) * -1e30;
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    const Tensor h = norm(x, w(layer + "input_layernorm.weight"), config.rms_norm_eps);
    const auto heads = [&](const char* name, int64_t count) {
      return at::matmul(h, w(layer + "self_attn." + name + ".weight").t()).view({length, count, d}).transpose(0, 1);
    };
    const int64_t group = config.num_attention_heads / config.num_key_value_heads;
    const Tensor q = rotate(heads("q_proj", config.num_attention_heads));
    const Tensor k = rotate(heads("k_proj", config.num_key_value_heads)).repeat_interleave(group, 0);
    const Tensor v = heads("v_proj", config.num_key_value_heads).repeat_interleave(group, 0);
    const Tensor p = at::softmax(at::matmul(q, k.transpose(1, 2)) / std::sqrt(static_cast<double>(d)) + mask, -1);
    const Tensor attended = at::matmul(p, v).transpose(0, 1).reshape({length, config.num_attention_heads * d});
    x = x + at::matmul(attended, w(layer + "self_attn.o_proj.weight").t());
    const Tensor m = norm(x, w(layer + "post_attention_layernorm.weight"), config.rms_norm_eps);
    const Tensor gate = at::matmul(m, w(layer + "mlp.gate_proj.weight").t());
    const Tensor up = at::matmul(m, w(layer + "mlp.up_proj.weight").t());
    x = x + at::matmul(at::silu(gate) * up, w(layer + "mlp.down_proj.weight").t());
  }
  return at::matmul(norm(x, w("model.norm.weight"), config.rms_norm_eps), w("model.embed_tokens.weight").t());
}

inline EngineOptions small_options() {
  EngineOptions options;
  options.max_sequences = 16;
  options.max_context_length = 128;
  options.kv_block_tokens = 4;
  options.seed = 7;
  return options;
}

inline GenerationRequest make_request(uint64_t sample_id, std::vector<int32_t> prompt, double temperature,
                                      int32_t max_new_tokens) {
  GenerationRequest request;
  request.sample_id = sample_id;
  request.prompt_tokens = std::move(prompt);
  request.sampling.temperature = temperature;
  request.sampling.max_new_tokens = max_new_tokens;
  return request;
}

/// `num_groups` prompts of different lengths with `num_samples` samples each; all prompts begin alike.
inline std::vector<GenerationRequest> make_requests(int num_groups, int num_samples, double temperature,
                                                    int32_t max_new_tokens) {
  std::vector<GenerationRequest> requests;
  for (int g = 0; g < num_groups; ++g) {
    std::vector<int32_t> prompt;
    for (int i = 0; i < 9 + 3 * g; ++i) prompt.push_back(i < 8 ? 5 + i : (17 * g + 7 * i) % 131);
    for (int s = 0; s < num_samples; ++s) {
      requests.push_back(make_request(make_sample_id(g, s), prompt, temperature, max_new_tokens));
    }
  }
  return requests;
}

}  // namespace troupe::engine_tests
