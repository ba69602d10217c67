// The generation engine: continuous batching over a paged KV cache. A plain class, driven step by step by whoever owns
// it (the rollout actor, `troupe generate`, `troupe verify`); it knows no actor and waits for nothing.
#pragma once

#include "base/trajectory.h"
#include "models/config.h"
#include "models/text/tokenizer.h"
#include "models/weights.h"

namespace troupe {

class PackedModel;  // rollout/packed_model.h: weights of one version, laid out for decoding, shared by all engines

struct SamplingOptions {
  double temperature = 1.0;  // 0 = greedy (refused for training)
  double top_p = 1.0;
  int32_t top_k = 0;
  double min_p = 0;
  int32_t max_new_tokens = 128;
  std::vector<std::string> stop;
  std::vector<int64_t> stop_token_ids;  // every end-of-sequence id; the sampled one stays in the tokens with mask 1
};

/// Throws Error naming the setting that is out of range.
void check_sampling_options(const SamplingOptions& sampling);

/// What happens to running sequences when new weights come: they go on with the cache they have, rebuild it, or end
/// under the old weights first (nothing new is admitted meanwhile).
enum class OnWeights { kKeep, kRecompute, kFinish };

struct EngineOptions {
  int32_t max_sequences = 32;
  int64_t kv_cache_mib = 0;     // 0: enough for max_sequences * max_context_length
  int64_t kv_cache_blocks = 0;  // where above 0: the budget in blocks, instead of kv_cache_mib
  int32_t kv_block_tokens = 16;
  int32_t prefill_chunk_tokens = 512;
  int64_t max_context_length = 2048;
  OnWeights on_weights = OnWeights::kKeep;
  bool deterministic = false;       // rows do not depend on the batch: on the CPU they never do, whatever this says
  int64_t log_prob_vocab_size = 0;  // the tokenizer's real vocabulary (invariant 6); 0: the model's
  uint64_t seed = 0;
  int num_threads = 1;  // of the engine, the caller of step() included
};

struct GenerationRequest {
  uint64_t sample_id = 0;
  uint32_t attempt = 0;
  std::vector<int32_t> prompt_tokens;
  SamplingOptions sampling;
  std::string metadata_json;
  /// Of an earlier engine's `unfinished`: the generation goes on after its tokens, the cache is rebuilt. It begins anew
  /// where they do not fit prompt, settings or, with OnWeights::kFinish, the weights.
  std::optional<Trajectory> so_far = std::nullopt;
  /// The sample as its turns so far left it; prompt_tokens are then its tokens and what the environment answered.
  std::shared_ptr<const Trajectory> turns_before = nullptr;
};

/// Counters since construction; every one is a metric.
struct EngineMetrics {
  int64_t decode_steps = 0, decoded_tokens = 0, prefill_tokens = 0, prefill_tokens_saved = 0;
  int64_t preemptions = 0, recomputed_tokens = 0, weight_updates = 0;
  double busy_s = 0, prefill_s = 0, decode_s = 0;
};

class Engine {
 public:
  /// `tokenizer` may be null: then stop strings are refused and completion_text stays empty.
  Engine(ModelConfig config, EngineOptions options, const Tokenizer* tokenizer);
  ~Engine();

  /// Takes effect between two steps, by `on_weights`: at once for keep and recompute, when the last started sequence
  /// has ended for finish. The first call must come before the first step. Throws Error where the model is not of the
  /// engine's configuration or of another dtype than the first one; the engine then keeps the weights it has.
  void set_weights(std::shared_ptr<const PackedModel> model);
  /// Version whose weights the engine computes with now; -1 before the first set_weights.
  int64_t version() const;
  /// Queues a request. Throws Error where prompt and settings cannot be served (empty, too long, ids out of range).
  void add(GenerationRequest request);
  /// Drops a request wherever it is; false where it is not known.
  bool cancel(uint64_t sample_id);
  /// Every sequence that has sampled tokens and goes on: its tokens so far, finish reason kError, no text.
  std::vector<Trajectory> unfinished() const;
  /// Gives every unfinished request back (a worker that leaves).
  std::vector<GenerationRequest> drain();
  /// One scheduling step: admits what fits, computes prompt chunks and one more token for every decoding sequence.
  /// Returns what finished. Throws Error on logits that are not finite, and where the cache cannot hold even one
  /// sequence; the engine is of no further use then.
  std::vector<Trajectory> step();
  bool idle() const;
  /// Sequences that could be added now without waiting.
  int32_t num_free_slots() const;
  const EngineMetrics& metrics() const;
  /// Called for every new token (streaming). Off by default.
  void set_token_callback(std::function<void(uint64_t sample_id, int32_t token)> callback);

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace troupe
