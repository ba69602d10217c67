// Training kernels compiled for one instruction set (avx512).
#include "models/kernels/attention_loops.h"
#include "models/kernels/training_loops.h"

namespace troupe::kernels {

const TrainingKernels kTrainingAvx512 = {"avx512",
                                         element_kernels<float, Attention<float, Fp32Tile<16>>>(),
                                         element_kernels<Bf16, Attention<Bf16, Fp32Tile<16>>>(),
                                         Loops<float>::score_gradient_into<Bf16>,
                                         {}};

}  // namespace troupe::kernels
