// Chooses the table of training kernels.
#include "base/cpu.h"
#include "models/kernels/training_kernels.h"

namespace troupe::kernels {

const TrainingKernels& training_kernels() {
  static const TrainingKernels& chosen = [&]() -> const TrainingKernels& {
    const CpuFeatures& features = cpu_features();
    if (features.avx512_bf16) return kTrainingAvx512Bf16;
    if (features.avx512) return kTrainingAvx512;
    return features.avx2 ? kTrainingAvx2 : kTrainingGeneric;
  }();
  return chosen;
}

}  // namespace troupe::kernels
