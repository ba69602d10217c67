// Sums over plain memory: gradients of several ranks in rank order, a gradient added to its fp32 accumulator, and the
// sum of squares of a shard. Half types accumulate in fp32, so the number of ranks costs no precision.
#pragma once

#include "models/torch.h"

namespace troupe {

/// For i in [begin, begin + count): every outputs[k][i] = sum over r, in order, of inputs[r][i]. Outputs may be inputs.
/// bool: logical or. Throws Error on dtypes that have no sum here.
void sum_in_order(at::ScalarType dtype, std::span<const void* const> inputs, std::span<void* const> outputs,
                  int64_t begin, int64_t count);

/// accumulator[i] (+)= gradient[i], in fp32; `overwrite` stores instead of adding. CPU, any floating-point gradient; on
/// other devices through at::.
void accumulate_gradient(Tensor& accumulator, const Tensor& gradient, bool overwrite);

/// Sum of squares in double; the same bits whatever the number of threads. CPU fp32, elsewhere through at::.
double sum_of_squares(const Tensor& values);

}  // namespace troupe
