// What a sharded model says of given trajectories, without gradient: log-probs for anchors and references, values of a
// critic.
#pragma once

#include <span>
#include <vector>

#include "base/trajectory.h"
#include "parallel/fully_sharded.h"
#include "training/log_probs.h"

namespace troupe {

/// A number a token, from the hidden states that predict it and the tokens themselves: [N].
using TokenNumber = std::function<Tensor(const Tensor& hidden_ND, const Tensor& targets_N)>;

/// [S][L]: `number` of token t where `wanted[s][t]` is 1 (index 0 has no predictor and must be 0), else 0. Every rank
/// of the model calls with the same arguments, computes its share and gets all.
std::vector<std::vector<float>> trajectory_numbers(FullyShardedDecoder& model, std::span<const Trajectory> batch,
                                                   std::span<const std::vector<uint8_t>> wanted,
                                                   int64_t num_tokens_per_row, at::Device device,
                                                   const TokenNumber& number);

struct TrajectoryLogProbOptions {
  int64_t num_tokens_per_row = 4096;
  at::Device device = at::kCPU;
  LogProbOptions log_probs;
};

/// The same for log-probs.
std::vector<std::vector<float>> trajectory_log_probs(FullyShardedDecoder& model, std::span<const Trajectory> batch,
                                                     std::span<const std::vector<uint8_t>> wanted,
                                                     const TrajectoryLogProbOptions& options);

}  // namespace troupe
