// The learner: one rank's training step for any objective. The trainer actor's shards each own one; RL, pre-training,
// supervised fine-tuning, reward models and DPO differ by the objective they are given. Every rank calls every
// function; numbers do not depend on the number of ranks.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>

#include "base/trajectory.h"
#include "models/config.h"
#include "parallel/parallel_model.h"
#include "training/algorithms.h"
#include "training/documents.h"
#include "training/lr_schedule.h"
#include "training/optimizer.h"
#include "training/preference_loss.h"
#include "training/preference_source.h"

namespace troupe {

struct LearnerOptions {
  OptimizerOptions optimizer;
  ScheduleOptions schedule;
  AlgorithmOptions algorithm;    // of policy steps
  PreferenceOptions preference;  // of steps over pairs
  double max_norm = 1.0;         // of the global gradient; 0: not clipped
  double expert_bias_rate = 0;   // of the balance of experts without a loss; 0: off
  int64_t num_tokens_per_microbatch = 4096;
  int64_t max_context_length = 2048;
  int skip_nonfinite_steps = 3;                // so many in a row stop the run
  int64_t log_prob_vocab_size = 0;             // the tokenizer's real vocabulary; 0: the model's
  std::string activation_checkpoint = "none";  // "none" "selective" "full"; fills parallel.recompute
  ParallelOptions parallel;
  uint64_t seed = 0;
  bool deterministic = false;  // torch's deterministic algorithms, for the whole process from then on
  double peak_flops = 0;       // of all ranks together, per second; gives "mfu(%)"; below 0: measured
  bool is_frozen = false;      // no optimizer state: the model is only asked, as a reference is
};

/// Names as in metrics.jsonl ("loss/mean", "grad_norm", "logprob_diff/max", ...). Plain numbers: no graph stays alive
/// (B123).
using Metrics = std::map<std::string, double>;

/// Summed log-probs of a pair's answers under the frozen reference, by pair id: (chosen, rejected).
using PreferenceReference = std::map<uint64_t, std::pair<double, double>>;

class Learner {
 public:
  /// UsageError on impossible options, also where the model cannot be laid over the groups' mesh. The groups'
  /// collectives outlive the learner. Context, tensor and pipeline neighbours are given the same data.
  Learner(const ModelConfig& config, const RankGroups& groups, LearnerOptions options);
  /// One copy of the model, sharded over all ranks.
  Learner(const ModelConfig& config, Collectives& collectives, LearnerOptions options);
  ~Learner();
  using ReadTensor = std::function<Tensor(const std::string& name)>;  // a full fp32 tensor by name
  void load(const ReadTensor& read);

  /// One policy update (num_epochs * num_minibatches optimizer steps) on the whole batch; every rank is given the same
  /// trajectories and takes its part. A non-finite loss or gradient skips the update, says so in "skipped" and throws
  /// Error after `skip_nonfinite_steps` in a row. A batch with nothing to learn makes no step ("train_batch/num_tokens"
  /// is that of the samples that take part, "train_batch/num_trained_tokens" 0). The trajectories carry reference
  /// log-probs and values where the algorithm reads them. Metrics: docs/algorithms.md.
  Metrics train_policy(const std::vector<Trajectory>& batch);

  /// Of a critic, a model with one score: the value of the state before each sampled token, on every rank ([L]; 0
  /// elsewhere).
  std::vector<std::vector<float>> values(const std::vector<Trajectory>& batch);
  /// One critic update (epochs and mini-batches as the policy's) towards the returns of LearnerOptions::algorithm; the
  /// trajectories carry `values`, and reference log-probs where the KL, at the policy's `kl_coefficient`, is part of
  /// the reward. Metrics "critic/...".
  Metrics train_values(const std::vector<Trajectory>& batch, double kl_coefficient);

  /// One pre-training update: each data rank gives its own rows; the denominator is the global count of targets. Throws
  /// Error where there is no target on any rank.
  Metrics train_language_model(const std::vector<LanguageModelBatch>& rows);
  /// Mean cross entropy without update, over all ranks' rows, however many each has (B097).
  Metrics evaluate_language_model(const std::vector<LanguageModelBatch>& rows);

  /// One update on pairs: the reward model's, or DPO's and IPO's, as LearnerOptions::preference says. Every rank is
  /// given the same pairs and takes its part; the loss is the mean over all of them. DPO and IPO need
  /// `set_preference_reference` before.
  Metrics train_preference(const std::vector<PreferencePair>& pairs);
  /// Loss, accuracy and margin without update, over all pairs ("validation/...").
  Metrics evaluate_preference(const std::vector<PreferencePair>& pairs);
  /// Log-probs of both answers (chosen, rejected) under the current weights, by pair id; the same on every rank.
  PreferenceReference preference_log_probs(const std::vector<PreferencePair>& pairs);
  void set_preference_reference(PreferenceReference reference);

  enum class Wanted { kAllTokens, kSampledTokens };
  /// Log-probs of every token (or of the sampled ones) of every trajectory under the current weights, on every rank
  /// (index t: token t; 0 at index 0 and where none was wanted).
  std::vector<std::vector<float>> log_probs(const std::vector<Trajectory>& batch, Wanted wanted = Wanted::kAllTokens);

  int64_t step() const;           // optimizer steps done
  double learning_rate() const;   // of the next step
  double kl_coefficient() const;  // fixed, or where the adaptive one stands
  void set_kl_coefficient(double value);
  TensorMap gather_weights(at::ScalarType dtype);
  /// See FullyShardedDecoder::borrow_weights.
  TensorMap borrow_weights(at::ScalarType dtype);
  FullyShardedDecoder& model();
  /// Null with one pipeline stage.
  const Pipeline* pipeline() const;
  /// Optimizer state by kind ("exp_avg", "exp_avg_sq"), one tensor a unit, shaped like the unit's shard; for
  /// checkpoints.
  std::map<std::string, std::vector<Tensor>> optimizer_state();
  /// What a checkpoint holds of the learner beside its tensors: steps done, where an adaptive KL coefficient stands,
  /// skipped steps in a row.
  nlohmann::json state() const;
  /// Throws Error naming the field that is missing or wrong.
  void set_state(const nlohmann::json& state);
  const LearnerOptions& options() const;

  struct Implementation;  // training/learner_implementation.h

 private:
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace troupe
