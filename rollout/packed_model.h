// Weights of one policy version, laid out once for decoding and shared by every engine of the process.
#pragma once

#include "models/config.h"
#include "models/weights.h"

namespace troupe {

/// Never changed after pack_model made it: engines in several threads read it at the same time.
class PackedModel {
 public:
  virtual ~PackedModel() = default;
  virtual int64_t version() const = 0;
  virtual int64_t bytes() const = 0;
  virtual at::ScalarType dtype() const = 0;
  virtual const ModelConfig& config() const = 0;
};

/// `dtype`: float32 or bfloat16 compute. Packs with `num_threads`; the snapshot may be dropped afterwards. Tensors may
/// be of any floating dtype. Throws Error naming a tensor that is missing, left over, misshaped or not on the CPU.
std::shared_ptr<const PackedModel> pack_model(const ModelConfig& config, const WeightSnapshot& snapshot,
                                              at::ScalarType dtype, int num_threads);

}  // namespace troupe
