// Entry of the CUDA half of the build.
#pragma once

namespace troupe {

/// Makes ops::* work on CUDA tensors and make_nccl_collectives on CUDA devices. Once, at the start of main, before
/// other threads; touches no device, so it also runs where there is none.
void register_cuda();

}  // namespace troupe
