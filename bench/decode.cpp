// Decoding speed of the generation engine: tokens/s at several numbers of sequences, prompt included.
//   bench-decode MODEL [fp32|bf16] [THREADS] [PROMPT] [NEW] [SEQUENCES,...]
// Compare with transformers' generate and llama.cpp's llama-batched-bench in the same minute, on the same machine:
// ratios are worth quoting, absolute times are not. Prompts differ from each other, so that no prefix is shared.
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "base/error.h"
#include "models/formats/checkpoint_reader.h"
#include "models/kernels/decode_kernels.h"
#include "rollout/generate.h"
#include "rollout/packed_model.h"

namespace troupe {
namespace {

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::vector<GenerationRequest> make_requests(int64_t count, int64_t prompt_length, int32_t max_new_tokens) {
  std::vector<GenerationRequest> requests(count);
  for (int64_t i = 0; i < count; ++i) {
    requests[i].sample_id = static_cast<uint64_t>(i);
    requests[i].sampling.max_new_tokens = max_new_tokens;
    for (int64_t t = 0; t < prompt_length; ++t) {
      requests[i].prompt_tokens.push_back(static_cast<int32_t>(10 + (i * 7919 + t * 104729) % 40000));
    }
  }
  return requests;
}

int run(int argc, char** argv) {
  require(argc >= 2, "usage: bench-decode MODEL [fp32|bf16] [THREADS] [PROMPT] [NEW] [SEQUENCES,...]");
  const at::ScalarType dtype = argc > 2 && std::string(argv[2]) == "fp32" ? at::kFloat : at::kBFloat16;
  const int num_threads = argc > 3 ? std::atoi(argv[3]) : 2;
  const int64_t prompt_length = argc > 4 ? std::atoll(argv[4]) : 40;
  const int32_t max_new_tokens = argc > 5 ? std::atoi(argv[5]) : 64;
  std::stringstream list(argc > 6 ? argv[6] : "1,16,32,64");
  const auto reader = open_checkpoint(argv[1]);
  const WeightSnapshot snapshot{0, load_weights(*reader, dtype)};
  double pack_s = 1e9;
  std::shared_ptr<const PackedModel> model;
  for (int i = 0; i < 3; ++i) {
    model.reset();
    const double start = now_s();
    model = pack_model(reader->config(), snapshot, dtype, num_threads);
    pack_s = std::min(pack_s, now_s() - start);
  }
  std::printf("kernels %s, %s, %d threads, packing %lld MiB %.0f ms\n", decode_kernels().name, at::toString(dtype),
              num_threads, static_cast<long long>(model->bytes() >> 20), pack_s * 1e3);
  for (std::string count; std::getline(list, count, ',');) {
    EngineOptions options;
    options.max_sequences = std::atoi(count.c_str());
    options.max_context_length = prompt_length + max_new_tokens;
    options.num_threads = num_threads;
    Engine engine(reader->config(), options, nullptr);
    engine.set_weights(model);
    double best_s = 1e9, best_step_s = 1e9;
    for (int repeat = 0; repeat < 3; ++repeat) {
      const EngineMetrics before = engine.metrics();
      const double start = now_s();
      generate_all(engine, make_requests(options.max_sequences, prompt_length, max_new_tokens));
      best_s = std::min(best_s, now_s() - start);
      const EngineMetrics& after = engine.metrics();
      best_step_s = std::min(best_step_s, (after.decode_s - before.decode_s) /
                                              static_cast<double>(after.decode_steps - before.decode_steps));
      engine.set_weights(model);  // forgets the prefixes
    }
    std::printf("%3d sequences: %7.1f tokens/s with prefill, %7.1f decode only (%.2f ms a step)\n",
                options.max_sequences, options.max_sequences * max_new_tokens / best_s,
                options.max_sequences / best_step_s, best_step_s * 1e3);
  }
  return 0;
}

}  // namespace
}  // namespace troupe

int main(int argc, char** argv) try { return troupe::run(argc, argv); } catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
