#include "models/formats/dequantise_k.h"

#include "models/formats/dequantise.h"

namespace troupe {
namespace {

float load_half(const uint8_t* at) { return half_to_float(static_cast<uint16_t>(at[0] | at[1] << 8)); }

/// Scale and minimum of sub-block 0-7 in q4_K and q5_K: twelve bytes hold eight pairs of six bits. The first four pairs
/// lie whole in the low six bits of bytes 0-7; of the last four, bytes 8-11 hold the low nibbles and the top bits of
/// bytes 0-7 the rest.
struct ScaleAndMinimum {
  int scale, minimum;
};
ScaleAndMinimum six_bit_pair(const uint8_t* packed, int index) {
  if (index < 4) return {packed[index] & 63, packed[index + 4] & 63};
  return {(packed[index + 4] & 15) | (packed[index - 4] >> 6 << 4),
          (packed[index + 4] >> 4) | (packed[index] >> 6 << 4)};
}

}  // namespace

// 16 bytes: scale (low nibble) and minimum (high nibble) of each 16 elements; 64 bytes of 2-bit quants; two halves.
// Byte l of a group of 32 holds elements l, l+32, l+64, l+96 of a half block of 128.
void unpack_q2_k(const uint8_t* block, float* out) {
  const uint8_t* scales = block;
  const uint8_t* quants = block + 16;
  const float scale = load_half(block + 80);
  const float minimum = load_half(block + 82);
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, shift = i % 128 / 32 * 2, byte = half * 32 + i % 32;
    const int pair = scales[i / 16];
    out[i] = scale * static_cast<float>(pair & 15) * static_cast<float>(quants[byte] >> shift & 3) -
             minimum * static_cast<float>(pair >> 4);
  }
}

// 32 bytes with the third bit of each quant (clear means minus 4), 64 bytes of 2-bit quants as in q2_K, 12 bytes with
// 16 scales of six bits less 32 (low nibbles in bytes 0-7, top bits in bytes 8-11), one half.
void unpack_q3_k(const uint8_t* block, float* out) {
  const uint8_t* third_bits = block;
  const uint8_t* quants = block + 32;
  const uint8_t* packed = block + 96;
  const float scale = load_half(block + 108);
  float scales[16];
  for (int i = 0; i < 16; ++i) {
    const int low = i < 8 ? packed[i] & 15 : packed[i - 8] >> 4;
    const int high = packed[8 + i % 4] >> (i / 4 * 2) & 3;
    scales[i] = scale * static_cast<float>((low | high << 4) - 32);
  }
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, shift = i % 128 / 32 * 2, byte = half * 32 + i % 32;
    const int quant = (quants[byte] >> shift & 3) - ((third_bits[i % 32] >> (i / 32) & 1) != 0 ? 0 : 4);
    out[i] = scales[i / 16] * static_cast<float>(quant);
  }
}

// Two halves, 12 bytes of scales and minima, 128 bytes of nibbles: a group of 32 bytes holds 32 low, then 32 high ones.
void unpack_q4_k(const uint8_t* block, float* out) {
  const float scale = load_half(block);
  const float minimum = load_half(block + 2);
  for (int part = 0; part < 8; ++part) {
    const auto [sub_scale, sub_minimum] = six_bit_pair(block + 4, part);
    const float factor = scale * static_cast<float>(sub_scale);
    const float offset = minimum * static_cast<float>(sub_minimum);
    const uint8_t* quants = block + 16 + part / 2 * 32;
    const int shift = part % 2 * 4;
    for (int i = 0; i < 32; ++i) out[part * 32 + i] = factor * static_cast<float>(quants[i] >> shift & 15) - offset;
  }
}

// As q4_K, with 32 bytes of fifth bits between: bit `part` of byte i belongs to element i of that part.
void unpack_q5_k(const uint8_t* block, float* out) {
  const float scale = load_half(block);
  const float minimum = load_half(block + 2);
  const uint8_t* fifth_bits = block + 16;
  for (int part = 0; part < 8; ++part) {
    const auto [sub_scale, sub_minimum] = six_bit_pair(block + 4, part);
    const float factor = scale * static_cast<float>(sub_scale);
    const float offset = minimum * static_cast<float>(sub_minimum);
    const uint8_t* quants = block + 48 + part / 2 * 32;
    const int shift = part % 2 * 4;
    for (int i = 0; i < 32; ++i) {
      const int quant = (quants[i] >> shift & 15) | (fifth_bits[i] >> part & 1) << 4;
      out[part * 32 + i] = factor * static_cast<float>(quant) - offset;
    }
  }
}

// 128 bytes of low nibbles, 64 bytes of 2-bit tops, 16 signed scales, one half. Of each 128 elements, the first 64 have
// the low nibbles of 64 bytes and the last 64 the high ones; the tops lie four to a byte, 32 elements apart.
void unpack_q6_k(const uint8_t* block, float* out) {
  const uint8_t* nibbles = block;
  const uint8_t* tops = block + 128;
  const uint8_t* scales = block + 192;
  const float scale = load_half(block + 208);
  for (int part = 0; part < 8; ++part) {  // 32 elements each
    const int half = part / 4, quarter = part % 4;
    const uint8_t* low = nibbles + half * 64 + quarter % 2 * 32;
    const uint8_t* top = tops + half * 32;
    for (int i = 0; i < 32; ++i) {
      const int quant = ((low[i] >> (quarter / 2 * 4) & 15) | (top[i] >> (quarter * 2) & 3) << 4) - 32;
      const auto sub_scale = static_cast<int8_t>(scales[part * 2 + i / 16]);
      out[part * 32 + i] = scale * static_cast<float>(sub_scale) * static_cast<float>(quant);
    }
  }
}

}  // namespace troupe
