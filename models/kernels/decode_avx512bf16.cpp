// Decode kernels for AVX-512 with VDPBF16PS: the matrix product of bf16 takes two elements along the depth at once, the
// rest is that of AVX-512.
#include "models/kernels/decode_tables.h"
#include "models/kernels/decode_vector512.h"

namespace troupe {
namespace {

constexpr int kRowsAtOnce = 8;  // 8 x 3 accumulators, 3 weights and a broadcast fill the 32 registers
constexpr int kVectors = kPanelColumns / 16;

inline __m512bh broadcast_pair(const Bf16* pair) {
  int bits;
  __builtin_memcpy(&bits, pair, sizeof(bits));
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(bits));
}

template <int kRows>
void dot_block(const Bf16* a, int64_t a_stride, const Bf16* panel, int64_t depth, float* out, int64_t out_stride) {
  __m512 sums[kRows][kVectors];
  for (auto& row : sums) {
    for (auto& sum : row) sum = _mm512_setzero_ps();
  }
  for (int64_t k = 0; k < depth; k += 2, panel += 2 * kPanelColumns) {
    __m512bh w[kVectors];
    for (int v = 0; v < kVectors; ++v) w[v] = reinterpret_cast<__m512bh>(_mm512_loadu_si512(panel + 32 * v));
    for (int r = 0; r < kRows; ++r) {
      const __m512bh x = broadcast_pair(a + r * a_stride + k);
      for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm512_dpbf16_ps(sums[r][v], x, w[v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) _mm512_storeu_ps(out + r * out_stride + 16 * v, sums[r][v]);
  }
}

template <int kRows>
void dot_rest(const Bf16* a, int64_t a_stride, int64_t rows, const Bf16* panel, int64_t depth, float* out,
              int64_t out_stride) {
  if (rows == kRows) return dot_block<kRows>(a, a_stride, panel, depth, out, out_stride);
  if constexpr (kRows > 1) dot_rest<kRows - 1>(a, a_stride, rows, panel, depth, out, out_stride);
}

void dot_panel(const Bf16* a, int64_t a_stride, int64_t rows, const Bf16* panel, int64_t depth, float* out,
               int64_t out_stride) {
  for (int64_t row = 0; row < rows; row += kRowsAtOnce) {
    const int64_t left = rows - row;
    dot_rest<kRowsAtOnce>(a + row * a_stride, a_stride, left < kRowsAtOnce ? left : kRowsAtOnce, panel, depth,
                          out + row * out_stride, out_stride);
  }
}

constexpr DecodeKernels make_table() {
  DecodeKernels table = DecodeLoops<Avx512>::table("avx512bf16");
  table.bf16.gemm_panel = &dot_panel;
  return table;
}

}  // namespace

const DecodeKernels& decode_kernels_avx512bf16() {
  static constexpr DecodeKernels table = make_table();
  return table;
}

}  // namespace troupe
