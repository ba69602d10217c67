// The K kinds of GGUF: blocks of 256 elements whose sub-blocks have scales (and minima) of a few bits.
#pragma once

#include <cstdint>

namespace troupe {

void unpack_q2_k(const uint8_t* block, float* out);
void unpack_q3_k(const uint8_t* block, float* out);
void unpack_q4_k(const uint8_t* block, float* out);
void unpack_q5_k(const uint8_t* block, float* out);
void unpack_q6_k(const uint8_t* block, float* out);

}  // namespace troupe
