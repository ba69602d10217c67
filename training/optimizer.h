// Optimizers over this rank's shards. State is shaped like the shards and follows them into checkpoints. Weight decay
// is decoupled and leaves norms and biases (what has one dimension or is named a bias, as those of experts are) alone,
// wherever in a flat shard they lie.
#pragma once

#include <map>

#include "parallel/fully_sharded.h"

namespace troupe {

struct OptimizerOptions {
  std::string name = "adamw";
  double lr = 1e-6, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// One update of every shard from its gradient times `gradient_scale`, with this step's rate. `step` counts from 1.
  virtual void update(double lr, double gradient_scale, int64_t step) = 0;
  /// State tensors by kind ("exp_avg", ...), one a unit in the shards' order. The tensors themselves: writing to them
  /// loads.
  virtual std::map<std::string, std::vector<Tensor>> state() = 0;
};

/// `specs` tells which parameters decay; shards and pieces as FullyShardedDecoder gives them. The shards
/// must outlive the optimizer. UsageError: an unknown name (lists the known ones) or a setting out of range.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options, std::vector<UnitShard>& shards,
                                          const std::vector<ShardPiece>& pieces,
                                          const std::vector<ParameterSpec>& specs);

}  // namespace troupe
