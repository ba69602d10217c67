// Rotary position embedding (Su et al. 2021): the table of cosines and sines of one packed row.
#pragma once

#include "models/config.h"
#include "models/torch.h"

namespace troupe::blocks {

/// [T, d]: cosines of the d/2 frequencies, then sines, times the attention factor; float64 for `dtype` float64, else
/// fp32. Angles are products of the position and the frequency in the table's own precision, as the reference
/// implementations have them. `document_lengths` (one for each position, see PackedLayout) is read only where the
/// frequencies depend on it; without it every position must lie within rope.constant_length().
Tensor rope_table(const RopeConfig& rope, int64_t head_dim, const std::vector<int32_t>& positions, at::ScalarType dtype,
                  at::Device device, const std::vector<int32_t>& document_lengths = {});

}  // namespace troupe::blocks
