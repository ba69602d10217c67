// The objective of one packed row of a policy step: policy loss, correction, KL and entropy per token, weighted so that
// all rows of all ranks add up to the loss of the mini-batch. Internal to training/.
#pragma once

#include "training/kl.h"
#include "training/log_probs.h"
#include "training/metric_sums.h"
#include "training/packing.h"
#include "training/policy_loss.h"
#include "training/policy_samples.h"

namespace troupe {

/// What is fixed for all epochs and mini-batches of one batch.
struct PolicyBatch {
  std::span<const Trajectory> trajectories;
  const AlgorithmOptions* options = nullptr;
  PolicySamples samples;
  std::vector<std::vector<float>> anchor;  // [S][L] of the ratio: the sampler's log-probs or the recomputed ones
  PolicyLossOptions loss;
  Aggregation aggregation = Aggregation::kTokenMean;
  KlEstimator kl_estimator = KlEstimator::kK3;
  double kl_coefficient = 0;

  PolicyBatch(std::span<const Trajectory> batch, const AlgorithmOptions& algorithm, double kl_coefficient);
  bool has_kl_loss() const;
  /// Whether the loss is a sum over tokens, each by itself; a sequence ratio joins them.
  bool is_sum_over_tokens() const { return loss.kind != PolicyLossKind::kGspo; }
};

class PolicyObjective {
 public:
  /// `counts` are those of the whole mini-batch over all ranks.
  PolicyObjective(const PolicyBatch& batch, const PackedRow& row, const LossCounts& counts, at::Device device);

  /// From here on only of these tokens of the row, which are those of `own`: its other tokens are another context
  /// rank's. What joins a sequence's tokens and is known before the forward was computed of all of them.
  void keep(const PackedRow& own, const std::vector<int64_t>& tokens);

  /// Sum over the given places of weight * (policy loss + KL - entropy bonus). Differentiable.
  Tensor operator()(const Tensor& log_prob, const Tensor& entropy, const Tensor& places) const;

  /// Adds the row's numbers to `sums`. `is_first_update`: the policy still is the one that the batch meets first, so
  /// its difference to the sampler is measured.
  void observe(const LogProbs& values, bool is_first_update, MetricSums& sums) const;

  /// Warns which samples made the row's loss not finite.
  void name_bad_samples(const Tensor& log_prob_N) const;

 private:
  PolicyLossInput input(const Tensor& log_prob) const;
  PolicyLossOptions without_correction() const;

  const PolicyBatch& batch_;
  const PackedRow* row_;
  Tensor advantages_N_, weights_N_, anchor_N_, behavior_N_, reference_N_, sequences_N_, correction_N_;
  int64_t num_sequences_ = 0;
};

}  // namespace troupe
