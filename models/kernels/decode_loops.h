// The loops of decode_kernels.h, written once over a vector type and compiled once for each instruction set. Only the
// files decode_<instruction set>.cpp include this. A vector type V has, as static members:
//   reg, kWidth (lanes), kGemmRows, kGemmVectors, kWideVectors (register blocking), kValueVectors
//   zero set1 load load_n store store_n (float and Bf16, _n: the first n lanes) add sub mul div fma min max round
//   power_of_two (2^n for whole n) sum maximum, even and odd (lanes of bf16 pairs, widened)
// V must be of internal linkage (an anonymous namespace), so that no copy compiled for a newer processor is shared.
#pragma once

#include <stdint.h>

#include "models/kernels/decode_kernels.h"

namespace troupe {

template <class V>
struct DecodeLoops {
  using reg = typename V::reg;
  static constexpr int64_t kWidth = V::kWidth;

  template <class T>
  static inline reg load(const T* from, int64_t remaining) {
    return remaining >= kWidth ? V::load(from) : V::load_n(from, remaining);
  }
  template <class T>
  static inline void store(T* to, reg value, int64_t remaining) {
    if (remaining >= kWidth) {
      V::store(to, value);
    } else {
      V::store_n(to, value, remaining);
    }
  }

  /// exp to about 1e-7 relative; arguments below -87.3 give about 1e-38, NaN stays NaN.
  static inline reg exp(reg x) {
    x = V::min(V::set1(88.3762f), V::max(V::set1(-87.3365f), x));
    const reg n = V::round(V::mul(x, V::set1(1.44269504f)));
    reg r = V::fma(n, V::set1(-0.693145752f), x);
    r = V::fma(n, V::set1(-1.42860677e-6f), r);
    reg p = V::set1(1.0f / 5040);
    for (const float c : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) p = V::fma(p, r, V::set1(c));
    return V::mul(p, V::power_of_two(n));
  }

  // ---- matrix products ----

  template <int kRows>
  static void gemm_block(const float* a, int64_t a_stride, const float* panel, int64_t depth, float* out,
                         int64_t out_stride) {
    constexpr int kVectors = V::kGemmVectors;
    for (int64_t column = 0; column < kPanelColumns; column += kVectors * kWidth) {
      reg sums[kRows][kVectors];
      for (auto& row : sums) {
        for (auto& sum : row) sum = V::zero();
      }
      const float* weights = panel + column;
      for (int64_t k = 0; k < depth; ++k, weights += kPanelColumns) {
        reg w[kVectors];
        for (int v = 0; v < kVectors; ++v) w[v] = V::load(weights + v * kWidth);
        for (int r = 0; r < kRows; ++r) {
          const reg x = V::set1(a[r * a_stride + k]);
          for (int v = 0; v < kVectors; ++v) sums[r][v] = V::fma(x, w[v], sums[r][v]);
        }
      }
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVectors; ++v) V::store(out + r * out_stride + column + v * kWidth, sums[r][v]);
      }
    }
  }

  /// bf16 operands widened in registers, for processors without a bf16 dot product.
  template <int kRows>
  static void gemm_block(const Bf16* a, int64_t a_stride, const Bf16* panel, int64_t depth, float* out,
                         int64_t out_stride) {
    constexpr int kVectors = V::kWideVectors;
    for (int64_t column = 0; column < kPanelColumns; column += kVectors * kWidth) {
      reg sums[kRows][kVectors];
      for (auto& row : sums) {
        for (auto& sum : row) sum = V::zero();
      }
      const Bf16* weights = panel + 2 * column;
      for (int64_t k = 0; k < depth; k += 2, weights += 2 * kPanelColumns) {
        reg even[kVectors], odd[kVectors];
        for (int v = 0; v < kVectors; ++v) {
          even[v] = V::even(weights + 2 * v * kWidth);
          odd[v] = V::odd(weights + 2 * v * kWidth);
        }
        for (int r = 0; r < kRows; ++r) {
          const Bf16* pair = a + r * a_stride + k;
          const reg x = V::set1(widened(pair[0])), y = V::set1(widened(pair[1]));
          for (int v = 0; v < kVectors; ++v) sums[r][v] = V::fma(y, odd[v], V::fma(x, even[v], sums[r][v]));
        }
      }
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVectors; ++v) V::store(out + r * out_stride + column + v * kWidth, sums[r][v]);
      }
    }
  }

  template <class T, int kRows>
  static void gemm_rest(const T* a, int64_t a_stride, int64_t rows, const T* panel, int64_t depth, float* out,
                        int64_t out_stride) {
    if (rows == kRows) return gemm_block<kRows>(a, a_stride, panel, depth, out, out_stride);
    if constexpr (kRows > 1) gemm_rest<T, kRows - 1>(a, a_stride, rows, panel, depth, out, out_stride);
  }

  template <class T>
  static void gemm_panel(const T* a, int64_t a_stride, int64_t rows, const T* panel, int64_t depth, float* out,
                         int64_t out_stride) {
    for (int64_t row = 0; row < rows; row += V::kGemmRows) {
      const int64_t left = rows - row;
      gemm_rest<T, V::kGemmRows>(a + row * a_stride, a_stride, left < V::kGemmRows ? left : V::kGemmRows, panel, depth,
                                 out + row * out_stride, out_stride);
    }
  }

  // ---- rows ----

  template <class T>
  static void rms_norm(const float* x, const float* weight, int64_t size, float eps, T* out) {
    reg sum = V::zero();
    for (int64_t i = 0; i < size; i += kWidth) {
      const reg value = load(x + i, size - i);
      sum = V::fma(value, value, sum);
    }
    const float mean = V::sum(sum) / static_cast<float>(size);
    const reg factor = V::set1(1.0f / __builtin_sqrtf(mean + eps));
    for (int64_t i = 0; i < size; i += kWidth) {
      store(out + i, V::mul(V::mul(load(x + i, size - i), factor), load(weight + i, size - i)), size - i);
    }
  }

  template <class T>
  static void swiglu(const float* gate, const float* up, int64_t size, T* out) {
    for (int64_t i = 0; i < size; i += kWidth) {
      const reg g = load(gate + i, size - i);
      const reg silu = V::div(g, V::add(V::set1(1.0f), exp(V::sub(V::zero(), g))));
      store(out + i, V::mul(silu, load(up + i, size - i)), size - i);
    }
  }

  template <class From, class To>
  static void copy(const From* from, int64_t size, To* to) {
    for (int64_t i = 0; i < size; i += kWidth) store(to + i, load(from + i, size - i), size - i);
  }

  static void add(const float* from, int64_t size, float* to) {
    for (int64_t i = 0; i < size; i += kWidth) {
      store(to + i, V::add(load(to + i, size - i), load(from + i, size - i)), size - i);
    }
  }

  static void rotate(float* head, const float* cosines, const float* sines, int64_t half) {
    for (int64_t i = 0; i < half; i += kWidth) {
      const int64_t n = half - i;
      const reg x = load(head + i, n), y = load(head + half + i, n), c = load(cosines + i, n), s = load(sines + i, n);
      store(head + i, V::sub(V::mul(x, c), V::mul(y, s)), n);
      store(head + half + i, V::add(V::mul(y, c), V::mul(x, s)), n);
    }
  }

  static float maximum(const float* x, int64_t size) {
    float largest = x[0];
    int64_t i = 0;
    if (size >= kWidth) {
      reg running = V::load(x);
      for (i = kWidth; i + kWidth <= size; i += kWidth) running = V::max(running, V::load(x + i));
      largest = V::maximum(running);
    }
    for (; i < size; ++i) largest = x[i] > largest ? x[i] : largest;
    return largest;
  }

  static void exp_into(const float* x, int64_t size, float factor, float shift, float* out) {
    const reg f = V::set1(factor), s = V::set1(-shift);
    for (int64_t i = 0; i < size; i += kWidth) {
      store(out + i, exp(V::fma(load(x + i, size - i), f, s)), size - i);
    }
  }

  static float exp_sum(const float* x, int64_t size, float factor, float shift) {
    const reg f = V::set1(factor), s = V::set1(-shift);
    reg sum = V::zero();
    int64_t i = 0;
    for (; i + kWidth <= size; i += kWidth) sum = V::add(sum, exp(V::fma(V::load(x + i), f, s)));
    float total = V::sum(sum);
    if (i < size) {
      float rest[kWidth];
      V::store(rest, exp(V::fma(V::load_n(x + i, size - i), f, s)));
      for (int64_t j = 0; j < size - i; ++j) total += rest[j];
    }
    return total;
  }

  // ---- attention ----

  template <class T, int kHeads>
  static void attend_heads(const AttentionTask<T>& task, int64_t first_head) {
    const int64_t d = task.head_size, length = task.length - task.first;
    const float* query = task.query + first_head * d;
    float* scores = task.scores;  // of token first + t at t
    for (int64_t start = -task.first, block = 0; start < length; start += task.block_tokens, ++block) {
      const int64_t begin = start < 0 ? 0 : start;
      const T* key = task.keys + task.blocks[block] * task.block_stride + (begin - start) * d;
      const int64_t end = length - start < task.block_tokens ? length : start + task.block_tokens;
      for (int64_t t = begin; t < end; ++t, key += d) {
        reg sums[kHeads];
        for (auto& sum : sums) sum = V::zero();
        for (int64_t i = 0; i < d; i += kWidth) {
          const reg k = load(key + i, d - i);
          for (int h = 0; h < kHeads; ++h) sums[h] = V::fma(k, load(query + h * d + i, d - i), sums[h]);
        }
        for (int h = 0; h < kHeads; ++h) scores[h * task.scores_stride + t] = V::sum(sums[h]) * task.scale;
      }
    }
    float inverse_sums[kHeads];
    for (int h = 0; h < kHeads; ++h) {
      float* row = scores + h * task.scores_stride;
      float top = maximum(row, length);
      const float* sink = task.sinks == nullptr ? nullptr : task.sinks + first_head + h;
      if (sink != nullptr && *sink > top) top = *sink;
      exp_into(row, length, 1.0f, top, row);
      reg sum = V::zero();
      for (int64_t t = 0; t < length; t += kWidth) sum = V::add(sum, load(row + t, length - t));
      float total = V::sum(sum);
      if (sink != nullptr) total += exp_sum(sink, 1, 1.0f, top);
      inverse_sums[h] = 1.0f / total;
    }
    for (int64_t i = 0; i < d; i += V::kValueVectors * kWidth) {
      weigh_values<T, kHeads>(task, first_head, i, inverse_sums);
    }
  }

  /// Columns [column, column + kValueVectors vectors) of the output.
  template <class T, int kHeads>
  static void weigh_values(const AttentionTask<T>& task, int64_t first_head, int64_t column, const float* factors) {
    constexpr int kVectors = V::kValueVectors;
    const int64_t d = task.head_size, length = task.length - task.first, rest = d - column;
    reg sums[kHeads][kVectors];
    for (auto& head : sums) {
      for (auto& sum : head) sum = V::zero();
    }
    for (int64_t start = -task.first, block = 0; start < length; start += task.block_tokens, ++block) {
      const int64_t begin = start < 0 ? 0 : start;
      const T* value = task.values + task.blocks[block] * task.block_stride + column + (begin - start) * d;
      const int64_t end = length - start < task.block_tokens ? length : start + task.block_tokens;
      for (int64_t t = begin; t < end; ++t, value += d) {
        reg v[kVectors];
        for (int j = 0; j < kVectors; ++j) {
          v[j] = rest > j * kWidth ? load(value + j * kWidth, rest - j * kWidth) : V::zero();
        }
        for (int h = 0; h < kHeads; ++h) {
          const reg p = V::set1(task.scores[h * task.scores_stride + t]);
          for (int j = 0; j < kVectors; ++j) sums[h][j] = V::fma(p, v[j], sums[h][j]);
        }
      }
    }
    for (int h = 0; h < kHeads; ++h) {
      T* out = task.out + (first_head + h) * d + column;
      const reg factor = V::set1(factors[h]);
      for (int j = 0; j < kVectors && rest > j * kWidth; ++j) {
        store(out + j * kWidth, V::mul(sums[h][j], factor), rest - j * kWidth);
      }
    }
  }

  template <class T>
  static void attend(const AttentionTask<T>& task) {
    int64_t head = 0;
    for (; head + 4 <= task.num_heads; head += 4) attend_heads<T, 4>(task, head);
    switch (task.num_heads - head) {
      case 3:
        return attend_heads<T, 3>(task, head);
      case 2:
        return attend_heads<T, 2>(task, head);
      case 1:
        return attend_heads<T, 1>(task, head);
      default:
        return;
    }
  }

  // ---- packing ----

  static inline float widened(Bf16 value) {
    const uint32_t bits = uint32_t{value.bits} << 16;
    return __builtin_bit_cast(float, bits);
  }
  static inline float widened(float value) { return value; }
  static inline void assign(Bf16 from, Bf16& to) { to = from; }
  static inline void assign(float from, float& to) { to = from; }
  static inline void assign(Bf16 from, float& to) { to = widened(from); }
  /// Round to nearest, ties to even.
  static inline void assign(float from, Bf16& to) {
    const auto bits = __builtin_bit_cast(uint32_t, from);
    to.bits = static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
  }

  /// What one row gives to a panel at depth k: one float, or a pair of bf16.
  static inline float panel_cell(const float* from, float*) { return *from; }
  static inline float panel_cell(const Bf16* from, float*) { return widened(*from); }
  static inline uint32_t panel_cell(const Bf16* from, Bf16*) {
    uint32_t pair;
    __builtin_memcpy(&pair, from, sizeof(pair));
    return pair;
  }
  static inline uint32_t panel_cell(const float* from, Bf16*) {
    Bf16 low, high;
    assign(from[0], low);
    assign(from[1], high);
    return uint32_t{low.bits} | uint32_t{high.bits} << 16;
  }

  template <class From, class To>
  static void pack_panel(const From* weight, int64_t stride, int64_t rows, int64_t depth, To* panel) {
    constexpr int64_t kPair = sizeof(To) == 2 ? 2 : 1;  // neighbours along the depth
    constexpr int64_t kChunk = 32;                      // cells along the depth; what is written stays in the cache
    using Cell = decltype(panel_cell(weight, panel));
    const int64_t whole = depth / kPair;  // cells; an odd depth has half a cell more
    for (int64_t begin = 0; begin < whole; begin += kChunk) {
      const int64_t end = begin + kChunk < whole ? begin + kChunk : whole;
      for (int64_t r = 0; r < rows; ++r) {
        const From* from = weight + r * stride;
        char* to = reinterpret_cast<char*>(panel) + r * sizeof(Cell);
        for (int64_t cell = begin; cell < end; ++cell) {
          const Cell value = panel_cell(from + cell * kPair, panel);
          __builtin_memcpy(to + cell * kPanelColumns * sizeof(Cell), &value, sizeof(Cell));
        }
      }
    }
    if (whole * kPair < depth) {
      for (int64_t r = 0; r < rows; ++r) {
        To* last = panel + (whole * kPanelColumns + r) * kPair;
        assign(weight[r * stride + depth - 1], last[0]);
        last[kPair - 1] = To{};
      }
    }
    const int64_t cells = (depth + kPair - 1) / kPair;
    for (int64_t cell = 0; rows < kPanelColumns && cell < cells; ++cell) {
      __builtin_memset(panel + (cell * kPanelColumns + rows) * kPair, 0, (kPanelColumns - rows) * sizeof(Cell));
    }
  }

  template <class T>
  static constexpr TypedDecodeKernels<T> typed() {
    return {&gemm_panel<T>, &pack_panel<float, T>, &pack_panel<Bf16, T>, &rms_norm<T>,
            &swiglu<T>,     &copy<float, T>,       &copy<T, float>,      &attend<T>};
  }
  static constexpr DecodeKernels table(const char* name) {
    return {name, typed<float>(), typed<Bf16>(), &add, &rotate, &maximum, &exp_into, &exp_sum};
  }
};

}  // namespace troupe
