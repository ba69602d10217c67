#include "models/kernels/decode_kernels.h"

#include "base/cpu.h"
#include "models/kernels/decode_tables.h"

namespace troupe {

std::vector<const DecodeKernels*> runnable_decode_kernels() {
  std::vector<const DecodeKernels*> tables = {&decode_kernels_generic()};
  const CpuFeatures& cpu = cpu_features();
  if (cpu.avx2) tables.push_back(&decode_kernels_avx2());
  if (cpu.avx512) tables.push_back(&decode_kernels_avx512());
  if (cpu.avx512_bf16) tables.push_back(&decode_kernels_avx512bf16());
  return tables;
}

const DecodeKernels& decode_kernels() {
  static const DecodeKernels& best = *runnable_decode_kernels().back();
  return best;
}

}  // namespace troupe
