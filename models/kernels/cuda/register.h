// Entry of the CUDA kernels: fills the table of ops_dispatch.h.
#pragma once

namespace troupe::ops {

/// Makes ops::* work on CUDA tensors. Once, at the start of main, in programs that link troupe_cuda.
void register_cuda_ops();

}  // namespace troupe::ops
