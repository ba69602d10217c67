// Log-probs of given trajectories under a sharded model, without gradient: what anchors, references and evaluations
// ask.
#pragma once

#include <span>
#include <vector>

#include "base/trajectory.h"
#include "parallel/fully_sharded.h"
#include "training/log_probs.h"

namespace troupe {

struct TrajectoryLogProbOptions {
  int64_t num_tokens_per_row = 4096;
  at::Device device = at::kCPU;
  LogProbOptions log_probs;
};

/// [S][L]: the log-prob of token t where `wanted[s][t]` is 1 (index 0 has no predictor and must be 0), else 0. Every
/// rank of the model calls with the same arguments, computes its share and gets all.
std::vector<std::vector<float>> trajectory_log_probs(FullyShardedDecoder& model, std::span<const Trajectory> batch,
                                                     std::span<const std::vector<uint8_t>> wanted,
                                                     const TrajectoryLogProbOptions& options);

}  // namespace troupe
