// Training kernels compiled for one instruction set (avx512_bf16).
#include "models/kernels/attention_loops.h"
#include "models/kernels/head_panels.h"
#include "models/kernels/training_loops.h"

namespace troupe::kernels {

const TrainingKernels kTrainingAvx512Bf16 = {"avx512_bf16", element_kernels<float, Attention<float, Fp32Tile<16>>>(),
                                             element_kernels<Bf16, Attention<Bf16, Bf16Tile>>(),
                                             Loops<float>::score_gradient_into<Bf16>, HeadPanels<Bf16Tile>::kernels()};

}  // namespace troupe::kernels
