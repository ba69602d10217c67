// The learner: one rank's training step for any objective. The trainer actor's shards each own one; pre-training and RL
// differ by the objective they are given. Every rank calls every function; numbers do not depend on the number of
// ranks.
#pragma once

#include <map>

#include "base/trajectory.h"
#include "models/config.h"
#include "parallel/fully_sharded.h"
#include "training/algorithms.h"
#include "training/documents.h"
#include "training/lr_schedule.h"
#include "training/optimizer.h"

namespace troupe {

struct LearnerOptions {
  OptimizerOptions optimizer;
  ScheduleOptions schedule;
  AlgorithmOptions algorithm;
  double max_norm = 1.0;
  int64_t num_tokens_per_microbatch = 4096;
  int64_t max_context_length = 2048;
  int skip_nonfinite_steps = 3;
  int64_t log_prob_vocab_size = 0;  // the tokenizer's real vocabulary; 0: the model's
  FullyShardedOptions sharding;
  uint64_t seed = 0;
  bool deterministic = false;
};

/// Names as in metrics.jsonl ("loss/mean", "grad_norm", "logprob_diff/max", ...).
using Metrics = std::map<std::string, double>;

class Learner {
 public:
  Learner(const ModelConfig& config, Collectives& collectives, LearnerOptions options);
  ~Learner();
  /// `read(name)` gives a full fp32 tensor.
  void load(const std::function<Tensor(const std::string& name)>& read);

  /// One policy update (num_epochs * num_minibatches optimizer steps) on the whole batch; every rank is given the same
  /// trajectories and takes its part. A non-finite loss or gradient skips the update, says so in "skipped" and throws
  /// Error after `skip_nonfinite_steps` in a row.
  Metrics train_policy(const std::vector<Trajectory>& batch);
  /// One pre-training update: each rank gives its own rows; the denominator is the global count of targets.
  Metrics train_language_model(const std::vector<LanguageModelBatch>& rows);
  /// Mean cross entropy without update, over all ranks' rows.
  Metrics evaluate_language_model(const std::vector<LanguageModelBatch>& rows);
  /// Log-probs of every token of every trajectory under the current weights (index t: token t; 0 at index 0).
  std::vector<std::vector<float>> log_probs(const std::vector<Trajectory>& batch);

  int64_t step() const;          // optimizer steps done
  double learning_rate() const;  // of the next step
  TensorMap gather_weights(at::ScalarType dtype);
  FullyShardedDecoder& model();
  /// Optimizer state by unit ("exp_avg", "exp_avg_sq"), shaped like the unit's shard; for checkpoints.
  std::map<std::string, std::vector<Tensor>> optimizer_state();
  void set_step(int64_t step);

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace troupe
