// The arithmetic of a decode step on the CPU, as plain loops over pointers: one table of functions for each instruction
// set, chosen at run time. No torch here; what a model is and how rows are shared over threads is the caller's
// business.
//
// Every row of every kernel is computed by the same operations in the same order however many rows there are: a
// sequence's bits depend on nothing else in the batch. Tables of different instruction sets may differ in rounding.
#pragma once

#include <cstdint>
#include <vector>

namespace troupe {

/// bfloat16 as stored: the upper half of a float.
struct Bf16 {
  uint16_t bits;
};

/// Output features of one panel. A weight [N, K] is stored as ceil(N / 48) panels; a float panel is [K][48], a bf16 one
/// [K/2][48][2] (pairs along K, as VDPBF16PS takes them), padded with zeros to full panels and to an even K.
inline constexpr int64_t kPanelColumns = 48;

/// One query row's heads that share a key/value head, over a paged cache. The cache's blocks are [K, B, d] each.
template <class T>
struct AttentionTask {
  const float* query = nullptr;  // [num_heads, head_size], dense
  const T* keys = nullptr;       // block 0 of this key/value head; block i is at keys + i * block_stride
  const T* values = nullptr;
  const int32_t* blocks = nullptr;  // block numbers of the sequence
  int64_t block_stride = 0;         // elements
  int64_t block_tokens = 0;
  int64_t first = 0;   // first token to attend, in block 0
  int64_t length = 0;  // end of the tokens to attend, > first
  int64_t num_heads = 0;
  int64_t head_size = 0;
  float scale = 1;
  float* scores = nullptr;       // scratch [num_heads, scores_stride]
  int64_t scores_stride = 0;     // >= length rounded up to 16
  T* out = nullptr;              // [num_heads, head_size], dense
  const float* sinks = nullptr;  // [num_heads] logits that take part in the softmax and give nothing; may be null
};

/// Kernels whose stored operands are T (float or Bf16); sums are always fp32.
template <class T>
struct TypedDecodeKernels {
  /// out[r][0..48) = sum over depth of a[r][k] * panel[k][column]. `depth` counts elements and is even for Bf16;
  /// strides in elements.
  void (*gemm_panel)(const T* a, int64_t a_stride, int64_t rows, const T* panel, int64_t depth, float* out,
                     int64_t out_stride);
  /// Packs rows [0, rows) (at most 48) of a row-major weight into one panel; the rest becomes zero.
  void (*pack_panel_from_float)(const float* weight, int64_t stride, int64_t rows, int64_t depth, T* panel);
  void (*pack_panel_from_bf16)(const Bf16* weight, int64_t stride, int64_t rows, int64_t depth, T* panel);
  /// out = x / sqrt(mean(x^2) + eps) * weight.
  void (*rms_norm)(const float* x, const float* weight, int64_t size, float eps, T* out);
  /// out = silu(gate) * up.
  void (*swiglu)(const float* gate, const float* up, int64_t size, T* out);
  void (*convert)(const float* from, int64_t size, T* to);
  void (*widen)(const T* from, int64_t size, float* to);
  void (*attend)(const AttentionTask<T>& task);
};

struct DecodeKernels {
  const char* name;
  TypedDecodeKernels<float> f32;
  TypedDecodeKernels<Bf16> bf16;
  /// to += from.
  void (*add)(const float* from, int64_t size, float* to);
  /// Rotary embedding of one head in place, pairs (i, i + half): Su et al. 2021 in Hugging Face's order.
  void (*rotate)(float* head, const float* cosines, const float* sines, int64_t half);
  float (*maximum)(const float* x, int64_t size);
  /// out = exp(x * factor - shift); returns nothing. `out` may be `x`.
  void (*exp_into)(const float* x, int64_t size, float factor, float shift, float* out);
  /// Sum of exp(x * factor - shift).
  float (*exp_sum)(const float* x, int64_t size, float factor, float shift);
};

template <class T>
const TypedDecodeKernels<T>& typed_kernels(const DecodeKernels& kernels);
template <>
inline const TypedDecodeKernels<float>& typed_kernels<float>(const DecodeKernels& kernels) {
  return kernels.f32;
}
template <>
inline const TypedDecodeKernels<Bf16>& typed_kernels<Bf16>(const DecodeKernels& kernels) {
  return kernels.bf16;
}

/// The best table for this processor (base/cpu.h, TROUPE_CPU lowers it).
const DecodeKernels& decode_kernels();
/// Every table that this processor can run, the plain one first (tests compare them).
std::vector<const DecodeKernels*> runnable_decode_kernels();

}  // namespace troupe
