// The network on whatever device is there: a training step of a SmolLM2-shaped decoder against the CPU in fp32, and
// decoding through the ops (paged cache, rope, attention, draw) against the training forward on the same device.
#include <iostream>

#include "models/kernels/ops.h"
#include "tests/doctest.h"
#include "tests/models/implementations.h"
#include "tests/models/tiny_model.h"

namespace troupe {
namespace {

using testing::relative_difference;
using testing::why_no_cuda;

/// SmolLM2-135M with fewer layers, so that the CPU's side of the comparison stays quick.
ModelConfig smollm2_shape(int64_t num_layers) {
  ModelConfig config = testing::tiny_config("llama", 64);
  config.vocab_size = 49152, config.hidden_size = 576, config.intermediate_size = 1536;
  config.num_hidden_layers = num_layers, config.num_attention_heads = 9, config.num_key_value_heads = 3;
  config.rope.theta = 100000;
  return config;
}

TensorMap weights_on(const ModelConfig& config, at::Device device) {
  at::manual_seed(3);
  TensorMap weights;
  for (const ParameterSpec& spec : parameter_specs(config)) {
    const Tensor weight = spec.shape.size() == 1 ? at::ones(spec.shape) : at::randn(spec.shape) * 0.04;
    weights[spec.name] = weight.to(device).requires_grad_();
  }
  return weights;
}

/// Mean cross entropy of the next token, its gradients, and the parameters after one AdamW step.
struct Step {
  double loss = 0;
  TensorMap gradients, parameters;
};

Step training_step(const ModelConfig& config, at::Device device) {
  TensorMap weights = weights_on(config, device);
  Decoder decoder(config);
  decoder.bind_all(weights);
  const PackedLayout layout = testing::documents({40, 24});
  at::manual_seed(5);
  const Tensor tokens = at::randint(config.vocab_size, {layout.num_tokens}, at::kLong).to(device);
  const Tensor logits = decoder.logits(decoder.forward(tokens, layout));
  const Tensor loss = at::cross_entropy_loss(logits.narrow(0, 0, 63), tokens.narrow(0, 1, 63));
  loss.backward();
  Step step;
  step.loss = loss.item<double>();
  const at::NoGradGuard no_grad;
  ops::AdamWArguments arguments;
  arguments.lr = 1e-4;
  for (auto& [name, weight] : weights) {
    REQUIRE(weight.grad().defined());
    step.gradients[name] = weight.grad().cpu();
    Tensor parameter = weight.detach(), exp_avg = at::zeros_like(parameter), exp_avg_sq = at::zeros_like(parameter);
    ops::fused_adamw_(parameter, weight.grad(), exp_avg, exp_avg_sq, arguments);
    step.parameters[name] = parameter.cpu();
  }
  return step;
}

/// Greedy continuation of one prompt by `count` tokens, token by token over a paged cache of shuffled blocks.
std::vector<int64_t> decode_greedily(const ModelConfig& config, const TensorMap& weights, at::Device device,
                                     std::vector<int64_t> tokens, int64_t count) {
  const at::NoGradGuard no_grad;
  constexpr int64_t kBlock = 4;
  const auto options = at::TensorOptions(device);
  const int64_t heads = config.num_attention_heads, kv_heads = config.num_key_value_heads, d = config.head_dim;
  const int64_t longest = std::ssize(tokens) + count, num_blocks = (longest + kBlock - 1) / kBlock;
  const Tensor table = (num_blocks - 1 - at::arange(num_blocks, at::kInt)).to(at::kInt).unsqueeze(0);
  std::vector<std::pair<Tensor, Tensor>> caches;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    caches.emplace_back(at::zeros({num_blocks, kv_heads, kBlock, d}, options),
                        at::zeros({num_blocks, kv_heads, kBlock, d}, options));
  }
  const std::vector<double> frequencies = rope_inverse_frequencies(config.rope, d);
  const Tensor inverse_frequencies = at::tensor(frequencies, at::kDouble).to(at::kFloat).to(device);
  const Tensor none = at::zeros({1}, options), one = at::ones({1}, options);
  const int64_t num_prompt = std::ssize(tokens);
  for (int64_t t = 0; t + 1 < num_prompt + count; ++t) {
    const int64_t block = table[0][t / kBlock].item<int64_t>();
    const Tensor position = at::full({1}, t, at::kInt).to(device), length = at::full({1}, t + 1, at::kInt).to(device);
    const Tensor slot = at::full({1}, block * kBlock + t % kBlock, at::kLong).to(device);
    Tensor x = weights.at("model.embed_tokens.weight").narrow(0, tokens[t], 1).contiguous();
    for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
      const auto get = [&](const std::string& name) {
        return weights.at("model.layers." + std::to_string(layer) + "." + name + ".weight");
      };
      const Tensor normed = ops::rms_norm(x, get("input_layernorm"), config.rms_norm_eps);
      Tensor q = at::linear(normed, get("self_attn.q_proj")).view({1, heads, d});
      Tensor k = at::linear(normed, get("self_attn.k_proj")).view({1, kv_heads, d});
      const Tensor v = at::linear(normed, get("self_attn.v_proj")).view({1, kv_heads, d});
      auto& [k_cache, v_cache] = caches[layer];
      ops::write_kv_with_rope_(q, k, v, position, slot, inverse_frequencies, k_cache, v_cache);
      const Tensor attended = ops::paged_decode_attention(q, k_cache, v_cache, table.to(device), length,
                                                          1 / std::sqrt(static_cast<double>(d)));
      x = x + at::linear(attended.view({1, heads * d}), get("self_attn.o_proj"));
      const Tensor mlp = ops::rms_norm(x, get("post_attention_layernorm"), config.rms_norm_eps);
      x = x + at::linear(at::silu(at::linear(mlp, get("mlp.gate_proj"))) * at::linear(mlp, get("mlp.up_proj")),
                         get("mlp.down_proj"));
    }
    if (t + 1 < num_prompt) continue;
    const Tensor hidden = ops::rms_norm(x, weights.at("model.norm.weight"), config.rms_norm_eps);
    const Tensor logits = at::linear(hidden, weights.at("model.embed_tokens.weight"));
    const auto [ids, log_probs] = ops::sample(logits, config.vocab_size, none, one, none.to(at::kInt), none,
                                              none.to(at::kLong), none.to(at::kInt), {});
    tokens.push_back(ids.item<int64_t>());
  }
  return tokens;
}

}  // namespace

TEST_CASE("device: decoding through the ops continues as the training forward does") {
  const ModelConfig config = smollm2_shape(2);
  std::vector<at::Device> devices = {at::kCPU};
  if (const char* reason = why_no_cuda(); reason == nullptr) {
    devices.emplace_back(at::kCUDA, 0);
  } else {
    std::cout << "device decode: CUDA skipped: " << reason << std::endl;
  }
  for (const at::Device device : devices) {
    CAPTURE(device.str());
    TensorMap weights = weights_on(config, device);
    Decoder decoder(config);
    decoder.bind_all(weights);
    std::vector<int64_t> expected = {5, 1000, 42, 7};
    for (int i = 0; i < 6; ++i) {
      const at::NoGradGuard no_grad;
      const auto length = static_cast<int32_t>(expected.size());
      const Tensor hidden = decoder.forward(at::tensor(expected, at::kLong).to(device), testing::documents({length}));
      expected.push_back(decoder.logits(hidden.narrow(0, length - 1, 1)).argmax().item<int64_t>());
    }
    CHECK(decode_greedily(config, weights, device, {5, 1000, 42, 7}, 6) == expected);
  }
}

TEST_CASE("device: a training step on CUDA gives the CPU's loss, gradients and parameters") {
  if (const char* reason = why_no_cuda(); reason != nullptr) {
    std::cout << "device training step: skipped: " << reason << std::endl;
    return;
  }
  const ModelConfig config = smollm2_shape(6);
  const Step cpu = training_step(config, at::kCPU), cuda = training_step(config, at::Device(at::kCUDA, 0));
  CHECK(std::abs(cpu.loss - cuda.loss) < 1e-5 * cpu.loss);
  for (const auto& [name, gradient] : cpu.gradients) {
    CAPTURE(name);
    CHECK(relative_difference(cuda.gradients.at(name), gradient) < 1e-4);
    CHECK((cuda.parameters.at(name) - cpu.parameters.at(name)).abs().max().item<double>() < 2.1e-4);  // 2 lr
  }
}

}  // namespace troupe
