// A network laid over a mesh: the one place where every technique is applied, in order, from outside.
//
//   1 plan      which part of every parameter, which units are this rank's     (parallel/plan)
//   2 decoder   the network of this rank's part
//   3 exchange  tensor, sequence, context and expert parallel at its seam      (parallel/rank_exchange)
//   4 shards    what is left is sharded over data and context ranks            (parallel/fully_sharded)
//   5 recompute around the units
//   6 pipeline  micro-batches through the stages by a schedule                 (parallel/pipeline)
#pragma once

#include "models/recompute.h"
#include "parallel/fully_sharded.h"
#include "parallel/pipeline.h"
#include "parallel/rank_exchange.h"

namespace troupe {

struct ParallelOptions {
  FullyShardedOptions sharding;
  bool sequence_parallel = true;  // where layers are split over tensor ranks
  bool head_tail = true;          // context ranks share a row's tokens evenly in work
  RecomputeMode recompute = RecomputeMode::kNone;
  PipelineOptions pipeline;
  double router_aux_loss_coef = 0;  // of the balancing loss (parallel/router_balance); a row weighs as its tokens do
};

/// One row as every rank of a copy is given it.
struct ModelRow {
  Tensor tokens_T;
  PackedLayout layout;
  bool counts = true;  // false: stands in for a row, its tokens are none of the step's
};

/// How the network is cut into stages and between ranks. UsageError where there are too few layers.
PlanOptions plan_options(const ModelConfig& config, const MeshDegrees& degrees, const ParallelOptions& options);
/// Throws UsageError where the network cannot be laid over such a mesh; before anything is built.
void check_parallel(const ModelConfig& config, const MeshDegrees& degrees, const ParallelOptions& options);

class ParallelModel {
 public:
  /// UsageError where the network cannot be split so. The groups' collectives must outlive this.
  ParallelModel(const ModelConfig& config, const RankGroups& groups, const ParallelOptions& options);

  const ParallelPlan& plan() const { return plan_; }
  const RankGroups& groups() const { return groups_; }
  FullyShardedDecoder& sharded() { return *sharded_; }

  /// Of the hidden states that `work` below is given, the row that stands for token `place`; -1: another context rank
  /// has it.
  int64_t local_place(int64_t num_tokens, int64_t place) const;
  /// Whether this rank stands for its context neighbours where numbers are of a whole row.
  bool speaks_for_row() const { return groups_.place().context == 0; }
  /// Sums over context ranks; the gradient of each rank's part is that of the sum.
  Tensor sum_over_context(const Tensor& x) const;
  /// Scores [N] of a model with one label, fp32. `head_1D`: head_weight().
  Tensor scores(const Tensor& hidden_ND, const Tensor& head_1D) const;
  /// Whether hidden states arrive at this rank: it has the last stage.
  bool has_last_stage() const { return plan_.owner(plan_.num_units() - 1) == groups_.place().pipeline; }

  /// Forward and backward of every row, a multiple of `row_multiple()`; `loss(row, hidden)` is called where hidden
  /// states arrive. Every rank that shares data calls with the same rows. Gradients are complete after
  /// `sharded().finish_backward()`.
  int row_multiple() const { return pipeline_ ? pipeline_->microbatch_multiple() : 1; }
  void train(size_t num_rows, const std::function<const ModelRow&(size_t row)>& rows,
             const std::function<Tensor(size_t row, const Tensor& hidden_TD)>& loss);
  /// Tokens [layers, experts] that the last `train` gave to every expert, on all ranks (parallel/expert_load);
  /// undefined where the network has none. Every rank calls.
  Tensor expert_load() const;
  /// This rank's part of the last `train`'s balancing loss, coefficient included; parts add up as those of losses do.
  double balance_loss() const { return balance_ == nullptr ? 0 : balance_->loss(); }
  /// Balance without a loss (Wang et al. 2024): the bias by which routers choose rises by `rate` for experts that had
  /// fewer tokens than the mean of their layer and falls for those that had more. Tell `sharded()` that parameters
  /// changed.
  void balance_experts(const Tensor& load_LE, double rate);
  /// Forward alone, without gradients.
  void evaluate(size_t num_rows, const std::function<const ModelRow&(size_t row)>& rows,
                const std::function<void(size_t row, const Tensor& hidden_TD)>& work);
  /// Null with one stage.
  const Pipeline* pipeline() const { return pipeline_.get(); }

 private:
  UnitRunner& runner(bool recomputes);
  /// Before the forward of a row that is trained; `balance_weight` of its balancing loss.
  void count_experts(const ModelRow& row, double balance_weight) const;
  double balance_per_token(size_t num_rows, const std::function<const ModelRow&(size_t row)>& rows) const;
  PipelineWork pipeline_work(const std::function<const ModelRow&(size_t row)>& rows, UnitRunner& runner);

  ParallelPlan plan_;
  RankGroups groups_;
  Decoder decoder_;
  std::shared_ptr<ExpertLoad> load_;              // null: no experts
  std::shared_ptr<RouterBalance> balance_;        // null: no balancing loss
  std::shared_ptr<const RankExchange> exchange_;  // null: one device a layer, and nobody who counts
  std::unique_ptr<FullyShardedDecoder> sharded_;
  std::unique_ptr<RecomputeRunner> recompute_;  // null: nothing is recomputed
  std::unique_ptr<Pipeline> pipeline_;          // null: one stage
  double router_aux_loss_coef_ = 0;
};

}  // namespace troupe
