// What a policy step makes of a batch before any model runs: rewards become advantages per token, and each sample
// either takes part or not. Every rank computes the same from the same batch.
#pragma once

#include <span>
#include <vector>

#include "base/trajectory.h"
#include "training/aggregation.h"
#include "training/algorithms.h"

namespace troupe {

struct PolicySamples {
  std::vector<std::vector<double>> advantages;  // [S][L], 0 under mask 0
  std::vector<std::vector<double>> returns;     // [S][L] what a critic learns; empty without advantage "gae"
  std::vector<uint8_t> takes_part;              // [S] counted in the loss's denominators
  std::vector<uint8_t> contributes;             // [S] takes part and has a gradient: goes through the model
  int64_t num_zero_variance_groups = 0, num_failed_rewards = 0, num_overlong = 0;
  double reference_kl_sum = 0;  // k1 of sampler and reference over the sampled tokens, where the KL is in the reward
};

/// Throws Error naming the sample that lacks what the algorithm reads (reference log-probs, values, baseline reward).
PolicySamples prepare_samples(std::span<const Trajectory> batch, const AlgorithmOptions& options,
                              double kl_coefficient);

/// Denominators of the samples in `subset` (indices in the batch).
LossCounts count_loss_tokens(std::span<const Trajectory> batch, const PolicySamples& samples,
                             std::span<const size_t> subset);

/// Cuts the batch into at most `num_minibatches` parts by whole groups, in an order drawn from (seed, key); one part
/// keeps all.
std::vector<std::vector<size_t>> cut_minibatches(std::span<const Trajectory> batch, int64_t num_minibatches,
                                                 uint64_t seed, uint64_t key);

}  // namespace troupe
