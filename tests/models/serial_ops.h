// The bodies of the CUDA kernels, run on the CPU: a loop over the grid, and in each block a loop over the thread
// numbers. What a GPU would compute is checked this way on machines without one: indices, tiles, splits, thresholds,
// the draw. What it cannot show: races between threads (run both orders: a phase that depends on the order differs),
// and launches.
#pragma once

#include "models/kernels/ops_dispatch.h"

namespace troupe::testing {

/// The order in which a phase runs its threads.
enum class ThreadOrder { kUp, kDown };

/// Implementations over CPU tensors with the signatures of ops.h; arguments are not checked.
ops::DeviceOps serial_cuda_ops(ThreadOrder order);

/// Attention with a chosen number of thread blocks to fill, so that short contexts are split too.
Tensor serial_attention(ThreadOrder order, int num_blocks_wanted, const Tensor& q_SHd, const Tensor& k_cache_NKBd,
                        const Tensor& v_cache_NKBd, const Tensor& block_tables_SM, const Tensor& lengths_S,
                        double scale);

}  // namespace troupe::testing
