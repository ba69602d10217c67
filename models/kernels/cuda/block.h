// What the kernel bodies of this folder are written with: a block of threads as an object, bfloat16 as two bytes, and
// 16-byte loads. A body is a template over the block: nvcc gives it DeviceBlock (threads, shared memory, barriers), the
// tests give it a serial block (a loop over the thread numbers), so that the very same indexing and arithmetic is
// checked on machines without a GPU. Bodies hold no state of a thread from one phase to the next; what outlives a phase
// lies in shared memory that the caller provides.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define TROUPE_DEVICE __device__
#else
#define TROUPE_DEVICE
#endif

namespace troupe::ops::cuda {

/// bfloat16 as stored; arithmetic happens in fp32.
struct Bf16 {
  uint16_t bits;
};

TROUPE_DEVICE inline float bits_to_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}
TROUPE_DEVICE inline uint32_t float_to_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

TROUPE_DEVICE inline float to_float(float value) { return value; }
TROUPE_DEVICE inline float to_float(Bf16 value) { return bits_to_float(uint32_t{value.bits} << 16); }

/// Rounds to nearest, ties to even, as torch does; NaN stays NaN.
template <class T>
TROUPE_DEVICE inline T from_float(float value);
template <>
TROUPE_DEVICE inline float from_float<float>(float value) {
  return value;
}
template <>
TROUPE_DEVICE inline Bf16 from_float<Bf16>(float value) {
  if (value != value) return Bf16{0x7FC0};
  const uint32_t bits = float_to_bits(value);
  return Bf16{static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16)};
}

/// 16 bytes of elements, moved at once where the address is a multiple of 16.
template <class T>
struct alignas(16) Pack {
  static constexpr int kSize = 16 / sizeof(T);
  T values[kSize];
};

#ifdef __CUDACC__
/// The threads of one CUDA block, each running the body's phases with its own number.
template <int kThreads>
class DeviceBlock {
 public:
  static constexpr int size() { return kThreads; }

  /// Runs f(thread) on every thread, then waits for all.
  template <class F>
  __device__ void each(F f) {
    f(static_cast<int>(threadIdx.x));
    __syncthreads();
  }

  /// combine over all threads' f(thread), known to every thread; the order is fixed, so a result repeats bit for bit.
  template <class Value, class F, class Combine>
  __device__ Value reduce(F f, Combine combine) {
    __shared__ Value partial[kThreads / 32];
    Value value = f(static_cast<int>(threadIdx.x));
    for (int offset = 16; offset > 0; offset /= 2) {
      value = combine(value, __shfl_xor_sync(0xFFFFFFFFu, value, offset));
    }
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
    __syncthreads();
    value = partial[0];
    for (int warp = 1; warp < kThreads / 32; ++warp) value = combine(value, partial[warp]);
    __syncthreads();
    return value;
  }
};
#endif

template <class Value, class Block, class F>
TROUPE_DEVICE Value block_sum(Block& block, F f) {
  return block.template reduce<Value>(f, [](Value a, Value b) { return a + b; });
}
template <class Value, class Block, class F>
TROUPE_DEVICE Value block_max(Block& block, F f) {
  return block.template reduce<Value>(f, [](Value a, Value b) { return a < b ? b : a; });
}
template <class Value, class Block, class F>
TROUPE_DEVICE Value block_min(Block& block, F f) {
  return block.template reduce<Value>(f, [](Value a, Value b) { return b < a ? b : a; });
}

}  // namespace troupe::ops::cuda
