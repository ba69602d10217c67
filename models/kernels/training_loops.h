// The training kernels but attention, as plain loops over one element type; included once by the file of each
// instruction set, whose compiler flags vectorise them. Statistics and arithmetic in fp32.
#pragma once

#include "models/kernels/elements.h"
#include "models/kernels/training_kernels.h"

namespace troupe::kernels {
namespace {

template <class T>
struct Loops {
  static void rms_norm(const void* x_v, const void* residual_v, const void* weight_v, float offset, int64_t rows,
                       int64_t width, float eps, void* sum_v, void* y_v, float* inverse_rms) {
    const T* weight = static_cast<const T*>(weight_v);
    for (int64_t row = 0; row < rows; ++row) {
      const T* x = static_cast<const T*>(x_v) + row * width;
      T* y = static_cast<T*>(y_v) + row * width;
      if (residual_v != nullptr) {
        const T* residual = static_cast<const T*>(residual_v) + row * width;
        T* sum = static_cast<T*>(sum_v) + row * width;
#pragma omp simd
        for (int64_t i = 0; i < width; ++i) store(sum + i, to_float(x[i]) + to_float(residual[i]));
        x = sum;
      }
      float squares = 0;
#pragma omp simd reduction(+ : squares)
      for (int64_t i = 0; i < width; ++i) squares += to_float(x[i]) * to_float(x[i]);
      const float scale = 1.0f / __builtin_sqrtf(squares / static_cast<float>(width) + eps);
      if (inverse_rms != nullptr) inverse_rms[row] = scale;
#pragma omp simd
      for (int64_t i = 0; i < width; ++i) store(y + i, to_float(x[i]) * scale * (to_float(weight[i]) + offset));
    }
  }

  static void rms_norm_backward(const void* d_y_v, const void* x_v, const void* weight_v, float offset,
                                const float* inverse_rms, const void* d_residual_v, int64_t rows, int64_t width,
                                void* d_x_v, float* d_weight) {
    const T* weight = static_cast<const T*>(weight_v);
    for (int64_t row = 0; row < rows; ++row) {
      const T* x = static_cast<const T*>(x_v) + row * width;
      const T* d_y = static_cast<const T*>(d_y_v) + row * width;
      T* d_x = static_cast<T*>(d_x_v) + row * width;
      const float scale = inverse_rms[row];
      float dot = 0;
#pragma omp simd reduction(+ : dot)
      for (int64_t i = 0; i < width; ++i) {
        const float weighted = to_float(d_y[i]) * to_float(x[i]);
        dot += weighted * (to_float(weight[i]) + offset);
        d_weight[i] += weighted * scale;
      }
      const float mean = dot * scale * scale / static_cast<float>(width);
      if (d_residual_v != nullptr) {
        const T* d_residual = static_cast<const T*>(d_residual_v) + row * width;
#pragma omp simd
        for (int64_t i = 0; i < width; ++i) {
          store(d_x + i, scale * (to_float(d_y[i]) * (to_float(weight[i]) + offset) - to_float(x[i]) * mean) +
                             to_float(d_residual[i]));
        }
      } else {
#pragma omp simd
        for (int64_t i = 0; i < width; ++i) {
          store(d_x + i, scale * (to_float(d_y[i]) * (to_float(weight[i]) + offset) - to_float(x[i]) * mean));
        }
      }
    }
  }

  static void swiglu(const void* gate_up_v, int64_t rows, int64_t size, void* product_v) {
    for (int64_t row = 0; row < rows; ++row) {
      const T* gate = static_cast<const T*>(gate_up_v) + row * 2 * size;
      const T* up = gate + size;
      T* product = static_cast<T*>(product_v) + row * size;
#pragma omp simd
      for (int64_t i = 0; i < size; ++i) {
        const float g = to_float(gate[i]), sigmoid = 1.0f / (1.0f + fast_exp(-g)), silu = g * sigmoid;
        store(product + i, silu * to_float(up[i]));
      }
    }
  }

  static void swiglu_backward(const void* gate_up_v, const void* d_product_v, int64_t rows, int64_t size,
                              void* product_v, void* d_gate_up_v) {
    for (int64_t row = 0; row < rows; ++row) {
      const T* gate = static_cast<const T*>(gate_up_v) + row * 2 * size;
      const T* up = gate + size;
      const T* d_product = static_cast<const T*>(d_product_v) + row * size;
      T* product = static_cast<T*>(product_v) + row * size;
      T* d_gate = static_cast<T*>(d_gate_up_v) + row * 2 * size;
      T* d_up = d_gate + size;
#pragma omp simd
      for (int64_t i = 0; i < size; ++i) {
        const float g = to_float(gate[i]), u = to_float(up[i]), d = to_float(d_product[i]);
        const float sigmoid = 1.0f / (1.0f + fast_exp(-g)), silu = g * sigmoid;
        store(product + i, silu * u);
        store(d_gate + i, d * u * (sigmoid + silu * (1.0f - sigmoid)));
        store(d_up + i, d * silu);
      }
    }
  }

  static void rope(void* buffer, int64_t rows, int64_t row_stride, int64_t num_heads, int64_t head_dim, int64_t rotated,
                   bool interleaved, const float* table, float sign) {
    const int64_t half = rotated / 2;
    for (int64_t row = 0; row < rows; ++row) {
      const float* cosines = table + row * rotated;
      const float* sines = cosines + half;
      for (int64_t head = 0; head < num_heads; ++head) {
        T* first = static_cast<T*>(buffer) + row * row_stride + head * head_dim;
        if (interleaved) {
          for (int64_t i = 0; i < half; ++i) {
            const float a = to_float(first[2 * i]), b = to_float(first[2 * i + 1]), sine = sines[i] * sign;
            store(first + 2 * i, a * cosines[i] - b * sine);
            store(first + 2 * i + 1, b * cosines[i] + a * sine);
          }
          continue;
        }
        T* second = first + half;
#pragma omp simd
        for (int64_t i = 0; i < half; ++i) {
          const float a = to_float(first[i]), b = to_float(second[i]), sine = sines[i] * sign;
          store(first + i, a * cosines[i] - b * sine);
          store(second + i, b * cosines[i] + a * sine);
        }
      }
    }
  }

  static ScoreValues score_values(const void* logits_v, int64_t size, float inverse_temperature, int64_t target) {
    const T* logits = static_cast<const T*>(logits_v);
    float maximum = -3.4e38f;
#pragma omp simd reduction(max : maximum)
    for (int64_t i = 0; i < size; ++i) maximum = to_float(logits[i]) > maximum ? to_float(logits[i]) : maximum;
    // Sums of blocks in fp32, of blocks' sums in double: 50,000 terms would cost fp32 three digits.
    double total = 0, weighted_total = 0;
    for (int64_t begin = 0; begin < size; begin += 1024) {
      const int64_t end = begin + 1024 < size ? begin + 1024 : size;
      float sum = 0, weighted = 0;
#pragma omp simd reduction(+ : sum, weighted)
      for (int64_t i = begin; i < end; ++i) {
        const float shifted = (to_float(logits[i]) - maximum) * inverse_temperature;
        const float e = fast_exp(shifted);
        sum += e;
        weighted += e * shifted;
      }
      total += sum;
      weighted_total += weighted;
    }
    const double log_total = __builtin_log(total), top = static_cast<double>(maximum) * inverse_temperature;
    ScoreValues values;
    values.log_sum_exp = static_cast<float>(top + log_total);
    values.log_prob =
        static_cast<float>((static_cast<double>(to_float(logits[target])) - maximum) * inverse_temperature - log_total);
    values.entropy = static_cast<float>(log_total - weighted_total / total);
    return values;
  }

  template <class Out>
  static void score_gradient_into(const void* logits_v, int64_t size, float inverse_temperature, int64_t target,
                                  const ScoreValues& values, float d_log_prob, float d_entropy, void* out_v) {
    const T* logits = static_cast<const T*>(logits_v);
    Out* out = static_cast<Out*>(out_v);
    const float at_target = to_float(logits[target]) * inverse_temperature - values.log_sum_exp;
    const float log_sum_exp = values.log_sum_exp;
    if (d_entropy == 0) {
      const float factor = -d_log_prob * inverse_temperature;
#pragma omp simd
      for (int64_t i = 0; i < size; ++i) {
        store(out + i, factor * fast_exp(to_float(logits[i]) * inverse_temperature - log_sum_exp));
      }
    } else {
      const float entropy = values.entropy;
#pragma omp simd
      for (int64_t i = 0; i < size; ++i) {
        const float log_p = to_float(logits[i]) * inverse_temperature - log_sum_exp;
        store(out + i, -inverse_temperature * fast_exp(log_p) * (d_log_prob + d_entropy * (log_p + entropy)));
      }
    }
    const float p = fast_exp(at_target);
    store(out + target, inverse_temperature * (d_log_prob * (1.0f - p) - d_entropy * p * (at_target + values.entropy)));
  }

  static void score_gradient(const void* logits, int64_t size, float inverse_temperature, int64_t target,
                             const ScoreValues& values, float d_log_prob, float d_entropy, void* out) {
    score_gradient_into<T>(logits, size, inverse_temperature, target, values, d_log_prob, d_entropy, out);
  }

  static void adamw(float* parameter, const void* gradient_v, float* exp_avg, float* exp_avg_sq, int64_t size,
                    const AdamWConstants& c) {
    const T* gradient = static_cast<const T*>(gradient_v);
#pragma omp simd
    for (int64_t i = 0; i < size; ++i) {
      const float g = to_float(gradient[i]) * c.gradient_scale;
      const float first = c.beta1 * exp_avg[i] + (1.0f - c.beta1) * g;
      const float second = c.beta2 * exp_avg_sq[i] + (1.0f - c.beta2) * g * g;
      exp_avg[i] = first;
      exp_avg_sq[i] = second;
      parameter[i] = parameter[i] * c.decay - c.step_size * first / (__builtin_sqrtf(second) * c.second_scale + c.eps);
    }
  }
};

template <class T, class Attention>
constexpr ElementKernels element_kernels() {
  return {Loops<T>::rms_norm, Loops<T>::rms_norm_backward, Loops<T>::swiglu,         Loops<T>::swiglu_backward,
          Loops<T>::rope,     Loops<T>::score_values,      Loops<T>::score_gradient, Loops<T>::adamw,
          Attention::forward, Attention::backward};
}

}  // namespace
}  // namespace troupe::kernels
