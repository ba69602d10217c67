// Decode kernels for any processor: vectors of one lane.
#include <cmath>

#include "models/kernels/decode_loops.h"
#include "models/kernels/decode_tables.h"

namespace troupe {
namespace {

struct Scalar {
  using reg = float;
  static constexpr int64_t kWidth = 1;
  static constexpr int kGemmRows = 2, kGemmVectors = 4, kWideVectors = 4, kValueVectors = 2;
  static reg zero() { return 0; }
  static reg set1(float x) { return x; }
  static reg load(const float* p) { return *p; }
  static reg load(const Bf16* p) { return DecodeLoops<Scalar>::widened(*p); }
  template <class T>
  static reg load_n(const T* p, int64_t) {
    return load(p);
  }
  static void store(float* p, reg x) { *p = x; }
  static void store(Bf16* p, reg x) { DecodeLoops<Scalar>::assign(x, *p); }
  template <class T>
  static void store_n(T* p, reg x, int64_t) {
    store(p, x);
  }
  static reg add(reg a, reg b) { return a + b; }
  static reg sub(reg a, reg b) { return a - b; }
  static reg mul(reg a, reg b) { return a * b; }
  static reg div(reg a, reg b) { return a / b; }
  static reg fma(reg a, reg b, reg c) { return a * b + c; }
  static reg min(reg a, reg b) { return a < b ? a : b; }
  static reg max(reg a, reg b) { return a > b ? a : b; }
  static reg round(reg x) { return std::nearbyint(x); }
  static reg power_of_two(reg n) { return std::ldexp(1.0f, n == n ? static_cast<int>(n) : 0); }
  static float sum(reg x) { return x; }
  static float maximum(reg x) { return x; }
  static reg even(const Bf16* p) { return load(p); }
  static reg odd(const Bf16* p) { return load(p + 1); }
};

}  // namespace

const DecodeKernels& decode_kernels_generic() {
  static constexpr DecodeKernels table = DecodeLoops<Scalar>::table("generic");
  return table;
}

}  // namespace troupe
