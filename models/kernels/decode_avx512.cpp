// Decode kernels for AVX-512 (F, BW, VL, DQ) without bf16 dot products: bf16 weights are widened in registers.
#include "models/kernels/decode_tables.h"
#include "models/kernels/decode_vector512.h"

namespace troupe {

const DecodeKernels& decode_kernels_avx512() {
  static constexpr DecodeKernels table = DecodeLoops<Avx512>::table("avx512");
  return table;
}

}  // namespace troupe
