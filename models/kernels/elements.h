// Element types and the vector exponential of the CPU kernels. Everything is static: each file that includes this gets
// its own copy, compiled for its own instruction set.
#pragma once

#include <cstdint>

namespace troupe::kernels {
namespace {

/// bfloat16 as bits.
struct Bf16 {
  uint16_t bits;
};

inline float to_float(float x) { return x; }
inline float to_float(Bf16 x) { return __builtin_bit_cast(float, static_cast<uint32_t>(x.bits) << 16); }

/// Rounds to nearest, ties to even (the quiet NaN that arithmetic makes stays one).
inline uint16_t bf16_bits(float x) {
  const auto bits = __builtin_bit_cast(uint32_t, x);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
inline void store(float* out, float x) { *out = x; }
inline void store(Bf16* out, float x) { out->bits = bf16_bits(x); }

/// exp(x), relative error below 2e-7 for x in [-87, 88]; 0 below. Plain arithmetic, so that loops over it vectorise.
inline float fast_exp(float x) {
  const float clamped = x < -87.0f ? -87.0f : (x > 88.0f ? 88.0f : x);
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float shifted = clamped * 1.44269504088896341f + magic;
  const float n = shifted - magic;
  const float r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const int32_t exponent = (__builtin_bit_cast(int32_t, shifted) << 23) + (127 << 23);
  const float scaled = p * __builtin_bit_cast(float, exponent);
  return x < -87.0f ? 0.0f : scaled;
}

}  // namespace
}  // namespace troupe::kernels
