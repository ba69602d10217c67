// Arithmetic that a packed row needs, for throughput and model FLOP utilisation (Chowdhery et al. 2022, appendix B, but
// counting what packing really asks: causal attention inside documents, and the head on predicted tokens only).
#pragma once

#include "models/config.h"
#include "models/layout.h"
#include "models/torch.h"

namespace troupe {

/// Floating-point operations of forward and backward (three times the forward; recompute counts for nothing): 6 a
/// parameter of the layers and token (of experts those that a token goes to), 6 a parameter of the head and predicted
/// token, 6 * heads * (size of a key + size of a value) a layer and attended pair; the delta rule is 18 * heads * key *
/// value size a token.
double training_flops(const ModelConfig& config, const PackedLayout& layout, int64_t num_predicted);

/// Operations a second of a large matrix product in `dtype` with the calling thread's share of the processor: what a
/// model's FLOP utilisation is measured by where the device's own figure is not given. Takes a fraction of a second.
double measure_flops(at::ScalarType dtype, at::Device device);

}  // namespace troupe
