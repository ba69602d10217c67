// Register-blocked products of small packed matrices, the ground of the attention kernels. Two kinds of tile: fp32 in
// any instruction set (GCC vector types of `Lanes` floats), and bf16 pairs with fp32 accumulation where the processor
// has VDPBF16PS. "Pack" is one packed element: a float, or a pair of bf16 that are neighbours along the summed
// dimension.
//
//   rows form         pack[row][k]         left operand, summed over columns
//   transposed form   pack[k][row]         right operand, summed over columns
//   interleaved form  pack[row / depth][column]   right operand summed over rows; read with strides swapped, the left
//                                                 operand of a product with the transpose
#pragma once

#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

#include "models/kernels/elements.h"

namespace troupe::kernels {
namespace {

template <int kLanes>
struct VectorOf {
  typedef float Type __attribute__((vector_size(kLanes * 4)));
  typedef float Unaligned __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));
};

template <int Lanes>
struct Fp32Tile {
  using Pack = float;
  using Vector = typename VectorOf<Lanes>::Type;
  using Unaligned = typename VectorOf<Lanes>::Unaligned;
  static constexpr int kLanes = Lanes, kDepth = 1, kVectors = Lanes == 16 ? 4 : 2, kRows = 6;

  static Vector load(const Pack* at) { return *reinterpret_cast<const Unaligned*>(at); }
  static Vector multiply_add(Vector sum, Pack left, Vector right) { return sum + left * right; }

  static Pack pack(float x, float) { return x; }
};

#ifdef __AVX512BF16__
struct Bf16Tile {
  typedef uint32_t Pack __attribute__((may_alias));
  using Vector = VectorOf<16>::Type;
  static constexpr int kLanes = 16, kDepth = 2, kVectors = 4, kRows = 6;

  static Vector load(const Pack* at) {
    return reinterpret_cast<Vector>(_mm512_loadu_ps(reinterpret_cast<const float*>(at)));
  }
  static Vector multiply_add(Vector sum, Pack left, Vector right) {
    return reinterpret_cast<Vector>(_mm512_dpbf16_ps(
        reinterpret_cast<__m512>(sum), reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(left))),
        reinterpret_cast<__m512bh>(right)));
  }

  static Pack pack(float first, float second) {
    return bf16_bits(first) | (static_cast<uint32_t>(bf16_bits(second)) << 16);
  }
};
#endif

/// A left operand read with any strides (in packs).
template <class Tile>
struct Left {
  const typename Tile::Pack* data;
  int64_t row_stride, k_stride;
};

template <class Tile, int kRows, int kVectors>
void product_tile(int64_t depth, Left<Tile> a, const typename Tile::Pack* b, int64_t b_stride, float* c,
                  int64_t c_stride, bool accumulate) {
  using Vector = typename Tile::Vector;
  using Unaligned = typename VectorOf<Tile::kLanes>::Unaligned;
  Vector sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      sums[r][v] =
          accumulate ? Vector(*reinterpret_cast<const Unaligned*>(c + r * c_stride + v * Tile::kLanes)) : Vector{};
    }
  }
  for (int64_t k = 0; k < depth; ++k) {
    Vector right[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) right[v] = Tile::load(b + k * b_stride + v * Tile::kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const auto left = a.data[r * a.row_stride + k * a.k_stride];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][v] = Tile::multiply_add(sums[r][v], left, right[v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) *reinterpret_cast<Unaligned*>(c + r * c_stride + v * Tile::kLanes) = sums[r][v];
  }
}

template <class Tile, int kVectors>
void product_columns(int64_t rows, int64_t depth, Left<Tile> a, const typename Tile::Pack* b, int64_t b_stride,
                     float* c, int64_t c_stride, bool accumulate) {
  int64_t row = 0;
  const auto at = [&](int64_t r) { return Left<Tile>{a.data + r * a.row_stride, a.row_stride, a.k_stride}; };
  for (; row + 6 <= rows; row += 6) {
    product_tile<Tile, 6, kVectors>(depth, at(row), b, b_stride, c + row * c_stride, c_stride, accumulate);
  }
  if (row + 4 <= rows) {
    product_tile<Tile, 4, kVectors>(depth, at(row), b, b_stride, c + row * c_stride, c_stride, accumulate);
    row += 4;
  }
  if (row + 2 <= rows) {
    product_tile<Tile, 2, kVectors>(depth, at(row), b, b_stride, c + row * c_stride, c_stride, accumulate);
    row += 2;
  }
  if (row < rows)
    product_tile<Tile, 1, kVectors>(depth, at(row), b, b_stride, c + row * c_stride, c_stride, accumulate);
}

/// c [rows, columns] (+)= a [rows, depth] b [depth, columns]; columns a multiple of the lanes, depth in packs.
template <class Tile>
void product(int64_t rows, int64_t columns, int64_t depth, Left<Tile> a, const typename Tile::Pack* b, int64_t b_stride,
             float* c, int64_t c_stride, bool accumulate) {
  int64_t column = 0;
  for (; column + Tile::kVectors * Tile::kLanes <= columns; column += Tile::kVectors * Tile::kLanes) {
    product_columns<Tile, Tile::kVectors>(rows, depth, a, b + column, b_stride, c + column, c_stride, accumulate);
  }
  for (; column < columns; column += Tile::kLanes) {
    product_columns<Tile, 1>(rows, depth, a, b + column, b_stride, c + column, c_stride, accumulate);
  }
}

}  // namespace
}  // namespace troupe::kernels
