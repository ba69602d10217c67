// The output head of a bf16 model with logits in fp32, in panels of 64 tokens: [V, 64] fp32 each, so that the product,
// the softmax statistics and the gradient all run along contiguous memory. Included by the file of the one instruction
// set that has VDPBF16PS.
#pragma once

#include "models/kernels/attention_tiles.h"
#include "models/kernels/training_kernels.h"

namespace troupe::kernels {
namespace {

template <class Tile>
struct HeadPanels {
  using Pack = typename Tile::Pack;
  static constexpr int64_t kWidth = kPanelWidth;

  /// Hidden states [count <= 64, size] -> pack[size / 2][64], zeros where there is no token.
  static void pack(const void* hidden_v, int64_t count, int64_t size, void* out_v) {
    const Bf16* hidden = static_cast<const Bf16*>(hidden_v);
    Pack* out = static_cast<Pack*>(out_v);
    for (int64_t k = 0; k < size / 2; ++k) {
      for (int64_t c = 0; c < kWidth; ++c) {
        const Bf16* x = hidden + c * size + 2 * k;
        out[k * kWidth + c] = c < count ? x[0].bits | (static_cast<uint32_t>(x[1].bits) << 16) : 0;
      }
    }
  }

  /// panel[v] = weight[v] . hidden for v in [begin, end), for every panel: weight rows stay in the cache meanwhile.
  static void multiply(const void* weight_v, int64_t begin, int64_t end, int64_t size, const void* packed_v,
                       int64_t num_panels, int64_t panel_stride, float* panels) {
    const Pack* weight = static_cast<const Pack*>(weight_v);
    const Pack* packed = static_cast<const Pack*>(packed_v);
    const int64_t depth = size / 2;
    for (int64_t v = begin; v < end; v += 96) {
      const int64_t rows = end - v < 96 ? end - v : 96;
      for (int64_t panel = 0; panel < num_panels; ++panel) {
        product<Tile>(rows, kWidth, depth, {weight + v * depth, depth, 1}, packed + panel * depth * kWidth, kWidth,
                      panels + panel * panel_stride + v * kWidth, kWidth, false);
      }
    }
  }

  /// Statistics of the panel's first `count` tokens over v in [0, size).
  static void values(const float* panel, int64_t size, float inverse_temperature, const int64_t* targets, int64_t count,
                     ScoreValues* out) {
    float maxima[kWidth], sums[kWidth], weighted[kWidth];
    double totals[kWidth], weighted_totals[kWidth];
    for (int64_t c = 0; c < kWidth; ++c) maxima[c] = -3.4e38f, totals[c] = weighted_totals[c] = 0;
    for (int64_t v = 0; v < size; ++v) {
#pragma omp simd
      for (int64_t c = 0; c < kWidth; ++c) {
        const float x = panel[v * kWidth + c];
        maxima[c] = x > maxima[c] ? x : maxima[c];
      }
    }
    for (int64_t begin = 0; begin < size; begin += 1024) {
      const int64_t end = begin + 1024 < size ? begin + 1024 : size;
      for (int64_t c = 0; c < kWidth; ++c) sums[c] = weighted[c] = 0;
      for (int64_t v = begin; v < end; ++v) {
#pragma omp simd
        for (int64_t c = 0; c < kWidth; ++c) {
          const float shifted = (panel[v * kWidth + c] - maxima[c]) * inverse_temperature, e = fast_exp(shifted);
          sums[c] += e;
          weighted[c] += e * shifted;
        }
      }
      for (int64_t c = 0; c < kWidth; ++c) totals[c] += sums[c], weighted_totals[c] += weighted[c];
    }
    for (int64_t c = 0; c < count; ++c) {
      const double log_total = __builtin_log(totals[c]);
      out[c].log_sum_exp = static_cast<float>(static_cast<double>(maxima[c]) * inverse_temperature + log_total);
      out[c].log_prob = static_cast<float>(
          (static_cast<double>(panel[targets[c] * kWidth + c]) - maxima[c]) * inverse_temperature - log_total);
      out[c].entropy = static_cast<float>(log_total - weighted_totals[c] / totals[c]);
    }
  }

  /// d loss / d logits of v in [begin, end) as bf16 into out[v * out_stride + c], from gradients of log-prob and
  /// entropy.
  static void gradient(const float* panel, int64_t begin, int64_t end, float inverse_temperature,
                       const int64_t* targets, int64_t count, const ScoreValues* values, const float* d_log_prob,
                       const float* d_entropy, void* out_v, int64_t out_stride) {
    Bf16* out = static_cast<Bf16*>(out_v);
    float log_sum_exp[kWidth] = {}, entropy[kWidth] = {}, d_lp[kWidth] = {}, d_h[kWidth] = {};
    for (int64_t c = 0; c < count; ++c) {
      log_sum_exp[c] = values[c].log_sum_exp, entropy[c] = values[c].entropy;
      d_lp[c] = d_log_prob[c] * inverse_temperature, d_h[c] = d_entropy[c] * inverse_temperature;
    }
    Bf16 row[kWidth];
    for (int64_t v = begin; v < end; ++v) {
#pragma omp simd
      for (int64_t c = 0; c < kWidth; ++c) {
        const float log_p = panel[v * kWidth + c] * inverse_temperature - log_sum_exp[c];
        store(row + c, -fast_exp(log_p) * (d_lp[c] + d_h[c] * (log_p + entropy[c])));
      }
      __builtin_memcpy(out + v * out_stride, row, static_cast<size_t>(count) * sizeof(Bf16));
    }
    for (int64_t c = 0; c < count; ++c) {
      if (targets[c] < begin || targets[c] >= end) continue;
      const float log_p = panel[targets[c] * kWidth + c] * inverse_temperature - log_sum_exp[c], p = fast_exp(log_p);
      store(out + targets[c] * out_stride + c, d_lp[c] * (1.0f - p) - d_h[c] * p * (log_p + entropy[c]));
    }
  }

  static constexpr HeadKernels kernels() { return {pack, multiply, values, gradient}; }
};

}  // namespace
}  // namespace troupe::kernels
