// Times forward + backward + fused AdamW of SmolLM2-135M's shape (random weights), to stand beside
// `hf_speed.py MODEL_DIR bf16 16 40 64`, whose train_tok_s is forward + backward alone.
//
// usage: bench-train-step [bf16|fp32] [repeats] [rows] [length] [samples of a shared prompt of 40 tokens, 0: none]
#include <malloc.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/cpu.h"
#include "models/decoder.h"
#include "models/kernels/ops.h"
#include "training/log_probs.h"

namespace {

using namespace troupe;

ModelConfig smollm2_135m() {
  ModelConfig config;
  config.model_type = "llama";
  config.vocab_size = 49152;
  config.hidden_size = 576;
  config.intermediate_size = 1536;
  config.num_hidden_layers = 30;
  config.num_attention_heads = 9;
  config.num_key_value_heads = 3;
  config.head_dim = 64;
  config.max_position_embeddings = 8192;
  config.tie_word_embeddings = true;
  config.rope.theta = 100000;
  return config;
}

/// One unit's parameters in one flat buffer, as sharding lays them out, with fp32 masters and moments.
struct Unit {
  Tensor flat, master, exp_avg, exp_avg_sq;
  std::vector<Tensor> leaves;
};

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

int main(int argc, char** argv) {
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);
  const std::string dtype_name = argc > 1 ? argv[1] : "bf16";
  const int repeats = argc > 2 ? std::atoi(argv[2]) : 3;
  const int rows = argc > 3 ? std::atoi(argv[3]) : 16, length = argc > 4 ? std::atoi(argv[4]) : 104;
  const int samples = argc > 5 ? std::atoi(argv[5]) : 0, prompt = 40;
  const auto dtype = dtype_name == "bf16" ? at::kBFloat16 : at::kFloat;
  at::set_num_threads(num_usable_cores());
  const ModelConfig config = smollm2_135m();
  Decoder decoder(config);
  std::vector<Unit> units(config.num_hidden_layers + 2);
  std::vector<int64_t> sizes(units.size());
  for (const auto& spec : decoder.specs()) sizes[spec.unit] += c10::multiply_integers(spec.shape);
  at::manual_seed(0);
  std::vector<int64_t> offsets(units.size());
  for (size_t u = 0; u < units.size(); ++u) {
    units[u].master = at::randn({sizes[u]}) * 0.02;
    units[u].exp_avg = at::zeros({sizes[u]});
    units[u].exp_avg_sq = at::zeros({sizes[u]});
    units[u].flat = units[u].master.to(dtype);
  }
  for (const auto& spec : decoder.specs()) {
    const int64_t size = c10::multiply_integers(spec.shape);
    Unit& unit = units[spec.unit];
    const Tensor leaf = unit.flat.narrow(0, offsets[spec.unit], size).view(spec.shape).detach();
    if (spec.shape.size() == 1) leaf.fill_(1), unit.master.narrow(0, offsets[spec.unit], size).fill_(1);
    leaf.requires_grad_();
    offsets[spec.unit] += size;
    unit.leaves.push_back(leaf);
    decoder.bind(spec.name, leaf);
  }
  PackedLayout layout;
  std::vector<int64_t> targets;
  const auto add = [&](int count, int parent, bool is_prompt) {
    layout.segments.push_back({layout.num_tokens, count, parent});
    layout.num_tokens += count;
    for (int i = 0; i < count; ++i) targets.push_back(is_prompt || i + 1 == count ? -1 : std::rand() % 40000);
  };
  for (int row = 0, root = -1; row < rows; ++row) {
    if (samples == 0) {
      add(length, -1, false);
      continue;
    }
    if (row % samples == 0) root = static_cast<int>(layout.segments.size()), add(prompt, -1, true);
    add(length - prompt, root, false);
  }
  const Tensor tokens = at::randint(10, 40000, {layout.num_tokens}, at::kLong),
               targets_T = at::tensor(targets, at::kLong);
  const auto denominator = static_cast<double>(targets_T.ge(0).sum().item<int64_t>());
  double best = 1e9;
  for (int step = 1; step <= repeats + 1; ++step) {
    const double begin = seconds();
    const Tensor hidden = decoder.forward(tokens, layout);
    const double after_forward = seconds();
    const auto result = log_prob_loss(
        hidden, decoder.head_weight(), targets_T, {},
        [&](const Tensor& log_prob, const Tensor&, const Tensor&) { return log_prob.sum() * (-1 / denominator); });
    const double after_head = seconds();
    torch::autograd::backward({result.loss}, {});
    const double after_backward = seconds();
    ops::AdamWArguments arguments;
    arguments.lr = 1e-5;
    arguments.step = step;
    const at::NoGradGuard no_grad;
    for (Unit& unit : units) {
      int64_t offset = 0;
      for (const Tensor& leaf : unit.leaves) {
        const auto part = [&](const Tensor& flat) { return flat.narrow(0, offset, leaf.numel()); };
        Tensor master = part(unit.master), m = part(unit.exp_avg), v = part(unit.exp_avg_sq);
        ops::fused_adamw_(master, leaf.grad().view(-1), m, v, arguments);
        part(unit.flat).copy_(master);
        leaf.mutable_grad() = Tensor();
        offset += leaf.numel();
      }
    }
    const double end = seconds();
    std::printf("step %d loss %.4f forward %.3f head %.3f backward %.3f update %.3f total %.3f\n", step,
                result.loss.item<double>(), after_forward - begin, after_head - after_forward,
                after_backward - after_head, end - after_backward, end - begin);
    if (step > 1) best = std::min(best, end - begin);
  }
  std::printf("{\"dtype\": \"%s\", \"tokens\": %d, \"computed_tokens\": %d, \"step_s\": %.4f, \"train_tok_s\": %.1f}\n",
              dtype_name.c_str(), rows * length, layout.num_tokens, best, rows * length / best);
}
