// How many tokens each expert was given in a step: counted where routers have chosen, each token once, however often
// its layer is computed.
#pragma once

#include "models/config.h"
#include "models/torch.h"
#include "parallel/rank_groups.h"

namespace troupe {

/// Whether a layer is being computed again, for a backward: its tokens were counted before.
bool is_recomputing();
/// How many of the counted tokens (undefined: all) chose each expert: [E], int64, from choices [T, K].
Tensor count_choices(const Tensor& experts_TK, const Tensor& is_counted_T, int64_t num_experts);

class ExpertLoad {
 public:
  explicit ExpertLoad(const ModelConfig& config);

  /// Forgets all and counts from now on, until `stop`.
  void start();
  void stop() { is_counting_ = false; }
  /// Of the rows that routers see next: which are tokens that count [T]; undefined: all.
  void set_counted(Tensor is_counted_T) { is_counted_T_ = std::move(is_counted_T); }
  /// A layer's choices; nothing where they are computed again.
  void add(int64_t layer, const Tensor& experts_TK);

  /// Counts [layers, experts] of all ranks, float64; every rank calls.
  Tensor total(const RankGroups& groups) const;

 private:
  bool is_counting_ = false;
  Tensor is_counted_T_;
  Tensor counts_LE_;  // float64
};

/// The most that any expert had above the mean of its layer, as a share of that mean (0: even), averaged over the
/// layers that have experts.
double load_violation(const Tensor& load_LE);

}  // namespace troupe
