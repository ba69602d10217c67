// What the parts of the learner share: the model, the optimizer and one update over micro-batches. Internal to
// training/.
//
//   learner.cpp           construction, state, and `update`: micro-batches -> clipped, checked optimizer step
//   learner_policy.cpp    trajectories -> rows -> policy objective
//   learner_language.cpp  rows of text -> cross entropy
//   learner_value.cpp     trajectories -> values, and the critic's update
//   learner_preference.cpp  pairs of answers -> Bradley-Terry, DPO or IPO
#pragma once

#include <cmath>

#include "base/error.h"
#include "models/recompute.h"
#include "training/kl.h"
#include "training/learner.h"
#include "training/log_probs.h"
#include "training/metric_sums.h"
#include "training/packing.h"

namespace troupe {

/// Trained tokens of one row as tensors on the model's device.
struct RowTensors {
  Tensor tokens_T, predictors_N, targets_N;
};

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(); }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

struct Learner::Implementation {
  /// `collectives`: all data-parallel ranks; the model is sharded over `shards` and repeated over `replicas` (or null).
  Implementation(const ModelConfig& config, Collectives& collectives, Collectives& shards, Collectives* replicas,
                 LearnerOptions options);

  struct Update {
    double grad_norm = 0, lr = 0;
    double forward_backward_s = 0, optimizer_s = 0;
    bool is_skipped = false;
  };
  /// One optimizer step over `num_rows` micro-batches (the same number on every rank). `run_row` does forward and
  /// backward of one and adds to `sums`, among it "loss". Joins the sums over ranks.
  Update update(int64_t num_rows, MetricSums& sums, const std::function<void(int64_t row)>& run_row);

  /// Hidden states [N, D] that predict the row's targets.
  Tensor predicting_hidden(const RowTensors& row, const PackedLayout& layout);
  /// Scores [N] of a model with one label, in fp32.
  Tensor scores(const Tensor& hidden_ND);
  RowTensors to_tensors(const PackedRow& row) const;
  LogProbOptions log_prob_options(double temperature) const;
  /// Adds tokens and floating-point operations of a row.
  void count_row(MetricSums& sums, const PackedLayout& layout, int64_t num_predicted, bool is_filler) const;
  /// What every kind of step reports.
  void report(Metrics& metrics, const MetricSums& sums, const Update& update) const;

  std::vector<std::vector<float>> log_probs(std::span<const Trajectory> batch,
                                            std::span<const std::vector<uint8_t>> wanted);

  ModelConfig config_;
  Collectives& collectives_;
  LearnerOptions options_;
  Decoder decoder_;
  FullyShardedDecoder model_;
  std::unique_ptr<Decoder> reference_decoder_;  // none: trajectories come with their reference log-probs
  std::unique_ptr<FullyShardedDecoder> reference_;
  std::unique_ptr<RecomputeRunner> recompute_;  // around the model; none: nothing is recomputed
  std::unique_ptr<Optimizer> optimizer_;
  KlCoefficient kl_coefficient_;
  PreferenceReference preference_reference_;
  int64_t step_ = 0;
  int num_skipped_in_a_row_ = 0;
};

}  // namespace troupe
