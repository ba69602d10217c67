// Kernel bodies of rms_norm and fused_adamw_, the ops of training.
#pragma once

#include "models/kernels/cuda/block.h"

namespace troupe::ops::cuda {

/// One row by one block: y = x / sqrt(mean(x^2) + eps) * weight in fp32, rounded once. Rows that are whole 16-byte
/// packs at aligned addresses (`packed`) are moved so.
template <class T, class Block>
TROUPE_DEVICE void rms_norm_row(Block& block, const T* x, const T* weight, T* y, int size, float eps, bool packed) {
  constexpr int kPack = Pack<T>::kSize;
  const float squares = block_sum<float>(block, [&](int thread) {
    float sum = 0;
    if (packed) {
      for (int i = thread; i < size / kPack; i += block.size()) {
        const Pack<T> pack = reinterpret_cast<const Pack<T>*>(x)[i];
        for (int j = 0; j < kPack; ++j) sum += to_float(pack.values[j]) * to_float(pack.values[j]);
      }
    } else {
      for (int i = thread; i < size; i += block.size()) sum += to_float(x[i]) * to_float(x[i]);
    }
    return sum;
  });
  const float scale = 1.0f / sqrtf(squares / static_cast<float>(size) + eps);
  block.each([&](int thread) {
    if (packed) {
      for (int i = thread; i < size / kPack; i += block.size()) {
        Pack<T> pack = reinterpret_cast<const Pack<T>*>(x)[i];
        const Pack<T> weights = reinterpret_cast<const Pack<T>*>(weight)[i];
        for (int j = 0; j < kPack; ++j) {
          pack.values[j] = from_float<T>(to_float(pack.values[j]) * scale * to_float(weights.values[j]));
        }
        reinterpret_cast<Pack<T>*>(y)[i] = pack;
      }
    } else {
      for (int i = thread; i < size; i += block.size()) {
        y[i] = from_float<T>(to_float(x[i]) * scale * to_float(weight[i]));
      }
    }
  });
}

/// What one AdamW step needs, in fp32.
struct AdamWConstants {
  float beta1, beta2, one_minus_beta1, one_minus_beta2;
  float decay;               // 1 - lr * weight_decay
  float step_size;           // lr / (1 - beta1^step)
  float inverse_root_bias2;  // 1 / sqrt(1 - beta2^step)
  float eps;
  float gradient_scale;
};

/// From ops::AdamWArguments; everything in double until the last rounding.
template <class Arguments>
AdamWConstants adamw_constants(const Arguments& a) {
  const double bias1 = 1 - std::pow(a.beta1, a.step), bias2 = 1 - std::pow(a.beta2, a.step);
  AdamWConstants c{};
  c.beta1 = static_cast<float>(a.beta1);
  c.beta2 = static_cast<float>(a.beta2);
  c.one_minus_beta1 = static_cast<float>(1 - a.beta1);
  c.one_minus_beta2 = static_cast<float>(1 - a.beta2);
  c.decay = static_cast<float>(1 - a.lr * a.weight_decay);
  c.step_size = static_cast<float>(a.lr / bias1);
  c.inverse_root_bias2 = static_cast<float>(1 / std::sqrt(bias2));
  c.eps = static_cast<float>(a.eps);
  c.gradient_scale = static_cast<float>(a.gradient_scale);
  return c;
}

TROUPE_DEVICE inline void adamw_element(float& parameter, float gradient, float& exp_avg, float& exp_avg_sq,
                                        const AdamWConstants& c) {
  const float g = gradient * c.gradient_scale;
  exp_avg = c.beta1 * exp_avg + c.one_minus_beta1 * g;
  exp_avg_sq = c.beta2 * exp_avg_sq + c.one_minus_beta2 * g * g;
  parameter = parameter * c.decay - c.step_size * exp_avg / (sqrtf(exp_avg_sq) * c.inverse_root_bias2 + c.eps);
}

}  // namespace troupe::ops::cuda
