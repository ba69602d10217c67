// The tables of decode_kernels.h by instruction set; only decode_kernels.cpp chooses among them. Calling a table's
// functions on a processor without its instructions ends the program.
#pragma once

#include "models/kernels/decode_kernels.h"

namespace troupe {

const DecodeKernels& decode_kernels_generic();
const DecodeKernels& decode_kernels_avx2();
const DecodeKernels& decode_kernels_avx512();
const DecodeKernels& decode_kernels_avx512bf16();

}  // namespace troupe
