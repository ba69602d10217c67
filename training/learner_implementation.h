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
#include "training/kl.h"
#include "training/learner.h"
#include "training/log_probs.h"
#include "training/metric_sums.h"
#include "training/packing.h"

namespace troupe {

/// One micro-batch as this rank sees it: the whole row, and those trained tokens whose predicting hidden state arrives
/// at this rank (all of them, but for context parallel).
struct LearnerRow {
  PackedRow whole;
  PackedRow own;              // the same row with these trained tokens alone; predictors count in its hidden states
  std::vector<int64_t> kept;  // [N] their places among all trained tokens of the row
  ModelRow model;
  Tensor predictors_N, targets_N;
};

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(); }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

struct Learner::Implementation {
  Implementation(const ModelConfig& config, const RankGroups& groups, LearnerOptions options);

  struct Update {
    double grad_norm = 0, lr = 0;
    double forward_backward_s = 0, optimizer_s = 0;
    bool is_skipped = false;
    double load_violation = -1;  // of experts; below 0: there are none
    double balance_loss = -1;    // without its coefficient; below 0: there is none
  };
  /// The loss of one row from the hidden states [N, D] that predict its own targets; adds to the sums, among it "loss".
  using RowLoss = std::function<Tensor(const LearnerRow& row, const Tensor& hidden_ND)>;
  /// One optimizer step over micro-batches, the same number on every rank. Joins the sums over ranks.
  Update update(const std::vector<LearnerRow>& rows, MetricSums& sums, const RowLoss& loss);
  /// Forward alone of every row; joins the sums over ranks.
  void evaluate(const std::vector<LearnerRow>& rows, MetricSums& sums,
                const std::function<void(const LearnerRow& row, const Tensor& hidden_ND)>& work);
  /// Joins sums over ranks whose losses add up, and hands the last stage's to all.
  void join(MetricSums& sums);

  LearnerRow make_row(PackedRow row) const;
  std::vector<LearnerRow> make_rows(const std::vector<PackedRow>& rows) const;
  /// Rows that count for nothing, where the pipeline's schedule takes a multiple of micro-batches.
  std::vector<LearnerRow> make_fillers(const std::vector<LearnerRow>& rows) const;
  /// This data rank's rows.
  std::vector<LearnerRow> own_rows(const std::vector<std::vector<PackedRow>>& rows_by_rank) const {
    return make_rows(rows_by_rank[static_cast<size_t>(groups_.data_rank())]);
  }
  Tensor head_weight() { return model_.sharded().head_weight(); }
  /// Numbers of a row's own tokens -> of all its tokens, on every context rank. Differentiable.
  Tensor whole_row(const LearnerRow& row, const Tensor& values_N) const;
  /// Scores [N] of a model with one label, in fp32.
  Tensor scores(const Tensor& hidden_ND);
  LogProbOptions log_prob_options(double temperature) const;
  /// Adds tokens and floating-point operations of a row, once for all ranks that share it.
  void count_row(MetricSums& sums, const PackedRow& row) const;
  /// What every kind of step reports.
  void report(Metrics& metrics, const MetricSums& sums, const Update& update) const;

  /// A number a token, from the hidden states that predict the row's own tokens: [N].
  using RowNumbers = std::function<Tensor(const LearnerRow& row, const Tensor& hidden_ND)>;
  /// [S][L]: the number of token t where `wanted[s][t]` is 1 (index 0 has no predictor and must be 0), else 0; on every
  /// rank. Without gradient: for anchors, references and values of a critic.
  std::vector<std::vector<float>> numbers(std::span<const Trajectory> batch,
                                          std::span<const std::vector<uint8_t>> wanted, const RowNumbers& numbers);
  std::vector<std::vector<float>> log_probs(std::span<const Trajectory> batch,
                                            std::span<const std::vector<uint8_t>> wanted, double temperature);

  ModelConfig config_;
  LearnerOptions options_;
  RankGroups groups_;
  ParallelModel model_;
  std::unique_ptr<Optimizer> optimizer_;  // none: frozen
  KlCoefficient kl_coefficient_;
  PreferenceReference preference_reference_;
  int64_t step_ = 0;
  int num_skipped_in_a_row_ = 0;
};

}  // namespace troupe
