// Full (unsharded) weights as plain tensors by checkpoint name, and immutable counted snapshots of them.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "models/torch.h"

namespace troupe {

/// Checkpoint name -> tensor. Tied tensors appear once (under the embedding's name).
using TensorMap = std::map<std::string, Tensor>;

/// The weights of one policy version. Never changed after it was made: readers share it by pointer (invariant 3).
struct WeightSnapshot {
  int64_t version = 0;
  TensorMap tensors;
};
using WeightSnapshotPointer = std::shared_ptr<const WeightSnapshot>;

/// "float32", "bfloat16", or "auto" (also ""): bfloat16 where the processor is faster with it. Else a UsageError.
at::ScalarType compute_dtype(const std::string& name);

}  // namespace troupe
