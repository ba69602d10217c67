// Training kernels compiled for one instruction set (avx2).
#include "models/kernels/attention_loops.h"
#include "models/kernels/training_loops.h"

namespace troupe::kernels {

const TrainingKernels kTrainingAvx2 = {"avx2",
                                       element_kernels<float, Attention<float, Fp32Tile<8>>>(),
                                       element_kernels<Bf16, Attention<Bf16, Fp32Tile<8>>>(),
                                       Loops<float>::score_gradient_into<Bf16>,
                                       {}};

}  // namespace troupe::kernels
