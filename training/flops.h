// Arithmetic that a packed row needs, for throughput and model FLOP utilisation (Chowdhery et al. 2022, appendix B, but
// counting what packing really asks: causal attention inside documents, and the head on predicted tokens only).
#pragma once

#include "models/config.h"
#include "models/layout.h"

namespace troupe {

/// Floating-point operations of forward and backward (three times the forward; recompute counts for nothing): 6 a
/// parameter of the layers and token, 6 a parameter of the head and predicted token, 12 * heads * head size a layer and
/// attended pair.
double training_flops(const ModelConfig& config, const PackedLayout& layout, int64_t num_predicted);

}  // namespace troupe
