// Training kernels compiled for one instruction set (generic).
#include "models/kernels/attention_loops.h"
#include "models/kernels/training_loops.h"

namespace troupe::kernels {

const TrainingKernels kTrainingGeneric = {"generic",
                                          element_kernels<float, Attention<float, Fp32Tile<4>>>(),
                                          element_kernels<Bf16, Attention<Bf16, Fp32Tile<4>>>(),
                                          Loops<float>::score_gradient_into<Bf16>,
                                          {}};

}  // namespace troupe::kernels
