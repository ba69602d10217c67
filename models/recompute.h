// Activation recompute (Chen et al. 2016, "Training deep nets with sublinear memory cost") as a unit runner around
// another: a recomputed layer keeps only its input and runs again during backward.
#pragma once

#include "models/decoder.h"

namespace troupe {

/// configuration key activation_checkpoint.mode: "none"; "full": every layer; "selective": every second layer.
enum class RecomputeMode { kNone, kSelective, kFull };
/// Throws UsageError listing the known modes.
RecomputeMode parse_recompute_mode(const std::string& mode);

/// Whether `unit` of a network of so many layers runs again during backward.
bool recomputes(RecomputeMode mode, int64_t unit, int64_t num_layers);

/// Runs units through `inner` (which must outlive the backward pass); layers chosen by the mode give it a body that
/// recomputes. The inner runner sees one call a unit, so a sharding runner gathers a unit once for recompute and
/// backward. The gradients are bit for bit those without recompute. Embedding and final norm are never recomputed.
class RecomputeRunner : public UnitRunner {
 public:
  RecomputeRunner(UnitRunner& inner, RecomputeMode mode, int64_t num_layers)
      : inner_(inner), mode_(mode), num_layers_(num_layers) {}
  Tensor run(int64_t unit, const Body& body, const Tensor& x) override;

 private:
  UnitRunner& inner_;
  RecomputeMode mode_;
  int64_t num_layers_;
};

}  // namespace troupe
