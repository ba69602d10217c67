// Unpacking of quantised weights to float32: plain loops over bytes, no torch. Formulas only; layouts as their
// publishers have them (ggml's blocks; DeepSeek's FP8 with one scale per 128x128 block; OCP microscaling MXFP4).
#pragma once

#include <cstddef>
#include <cstdint>

namespace troupe {

/// IEEE half and bfloat16 to float, exactly.
float half_to_float(uint16_t half);
inline float bfloat16_to_float(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float result;
  __builtin_memcpy(&result, &wide, sizeof(result));
  return result;
}
/// e4m3 without infinities (0x7f and 0xff are NaN); e8m0: 2^(bits-127), 0xff is NaN.
float float8_e4m3_to_float(uint8_t bits);
float e8m0_to_float(uint8_t bits);

/// MXFP4 as in safetensors: 16 bytes a block of 32 elements, low nibble first (two neighbours to a byte), e8m0 scales
/// apart.
void dequantise_mxfp4(const uint8_t* blocks, const uint8_t* scales, size_t num_blocks, float* out);
/// One row of e4m3 numbers, each times the scale of its column's block (DeepSeek-V3, `weight_scale_inv`).
void dequantise_fp8_row(const uint8_t* row, size_t num_columns, const float* scales, size_t block_columns, float* out);

/// Unpacks `num_blocks` whole blocks of a GGUF type (its id; see find_gguf_type) into num_blocks * block_size floats.
/// Throws Error for ids that find_gguf_type does not know.
void dequantise_gguf(uint32_t type_id, const std::byte* blocks, size_t num_blocks, float* out);

}  // namespace troupe
