// The 512-bit vector type of the decode kernels, shared by decode_avx512.cpp and decode_avx512bf16.cpp. Everything here
// is of internal linkage: each of the two files has its own copy.
#pragma once

// g++ 12 takes its own _mm512_undefined_epi32 for a use of an uninitialised value (GCC bug 105593, mended in 13).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>

#include "models/kernels/decode_loops.h"

namespace troupe {
namespace {

struct Avx512 {
  using reg = __m512;
  static constexpr int64_t kWidth = 16;
  static constexpr int kGemmRows = 8, kGemmVectors = 3, kWideVectors = 3, kValueVectors = 4;
  static reg zero() { return _mm512_setzero_ps(); }
  static reg set1(float x) { return _mm512_set1_ps(x); }
  static reg load(const float* p) { return _mm512_loadu_ps(p); }
  static reg widen(__m256i halves) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16)); }
  static reg load(const Bf16* p) { return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  static __mmask16 lanes(int64_t n) { return static_cast<__mmask16>((1u << n) - 1); }
  static reg load_n(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(lanes(n), p); }
  static reg load_n(const Bf16* p, int64_t n) { return widen(_mm256_maskz_loadu_epi16(lanes(n), p)); }
  static __m256i narrow(reg x) {
#ifdef __AVX512BF16__
    return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x));
#else
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i lsb = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(lsb, _mm512_set1_epi32(0x7fff)));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
#endif
  }
  static void store(float* p, reg x) { _mm512_storeu_ps(p, x); }
  static void store(Bf16* p, reg x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(x)); }
  static void store_n(float* p, reg x, int64_t n) { _mm512_mask_storeu_ps(p, lanes(n), x); }
  static void store_n(Bf16* p, reg x, int64_t n) { _mm256_mask_storeu_epi16(p, lanes(n), narrow(x)); }
  static reg add(reg a, reg b) { return _mm512_add_ps(a, b); }
  static reg sub(reg a, reg b) { return _mm512_sub_ps(a, b); }
  static reg mul(reg a, reg b) { return _mm512_mul_ps(a, b); }
  static reg div(reg a, reg b) { return _mm512_div_ps(a, b); }
  static reg fma(reg a, reg b, reg c) { return _mm512_fmadd_ps(a, b, c); }
  static reg min(reg a, reg b) { return _mm512_min_ps(a, b); }
  static reg max(reg a, reg b) { return _mm512_max_ps(a, b); }
  static reg round(reg x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static reg power_of_two(reg n) {
    const __m512i exponent = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23));
  }
  static float sum(reg x) { return _mm512_reduce_add_ps(x); }
  static float maximum(reg x) { return _mm512_reduce_max_ps(x); }
  static reg even(const Bf16* p) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16)); }
  static reg odd(const Bf16* p) {
    return _mm512_castsi512_ps(
        _mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  }
};

}  // namespace
}  // namespace troupe
