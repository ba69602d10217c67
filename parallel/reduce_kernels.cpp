#include "parallel/reduce_kernels.h"

#include "base/error.h"

namespace troupe {
namespace {

constexpr int64_t kBlock = 1024;       // elements summed at a time: stays in the first cache
constexpr int64_t kGrain = 64 * 1024;  // elements a thread is worth waking for

template <class T, class Sum>
void sum_typed(std::span<const void* const> inputs, std::span<void* const> outputs, int64_t begin, int64_t count) {
  Sum sum[kBlock];
  for (int64_t at = begin; at < begin + count; at += kBlock) {
    const int64_t n = std::min(kBlock, begin + count - at);
    const T* first = static_cast<const T*>(inputs[0]) + at;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) sum[i] = static_cast<Sum>(first[i]);
    for (size_t rank = 1; rank < inputs.size(); ++rank) {
      const T* input = static_cast<const T*>(inputs[rank]) + at;
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) sum[i] += static_cast<Sum>(input[i]);
    }
    for (void* output : outputs) {
      T* target = static_cast<T*>(output) + at;
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) target[i] = static_cast<T>(sum[i]);
    }
  }
}

void or_bool(std::span<const void* const> inputs, std::span<void* const> outputs, int64_t begin, int64_t count) {
  for (int64_t i = begin; i < begin + count; ++i) {
    bool any = false;
    for (const void* input : inputs) any = any || static_cast<const bool*>(input)[i];
    for (void* output : outputs) static_cast<bool*>(output)[i] = any;
  }
}

template <class T>
void accumulate_typed(float* accumulator, const T* gradient, int64_t count, bool overwrite) {
  at::parallel_for(0, count, kGrain, [&](int64_t begin, int64_t end) {
    if (overwrite) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) accumulator[i] = static_cast<float>(gradient[i]);
    } else {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) accumulator[i] += static_cast<float>(gradient[i]);
    }
  });
}

}  // namespace

void sum_in_order(at::ScalarType dtype, std::span<const void* const> inputs, std::span<void* const> outputs,
                  int64_t begin, int64_t count) {
  switch (dtype) {
    case at::kFloat:
      return sum_typed<float, float>(inputs, outputs, begin, count);
    case at::kDouble:
      return sum_typed<double, double>(inputs, outputs, begin, count);
    case at::kBFloat16:
      return sum_typed<c10::BFloat16, float>(inputs, outputs, begin, count);
    case at::kHalf:
      return sum_typed<c10::Half, float>(inputs, outputs, begin, count);
    case at::kLong:
      return sum_typed<int64_t, int64_t>(inputs, outputs, begin, count);
    case at::kInt:
      return sum_typed<int32_t, int32_t>(inputs, outputs, begin, count);
    case at::kShort:
      return sum_typed<int16_t, int16_t>(inputs, outputs, begin, count);
    case at::kChar:
      return sum_typed<int8_t, int8_t>(inputs, outputs, begin, count);
    case at::kByte:
      return sum_typed<uint8_t, uint8_t>(inputs, outputs, begin, count);
    case at::kBool:
      return or_bool(inputs, outputs, begin, count);
    default:
      fail("collectives have no sum for dtype ", c10::toString(dtype));
  }
}

void accumulate_gradient(Tensor& accumulator, const Tensor& gradient, bool overwrite) {
  require(accumulator.numel() == gradient.numel(), "a gradient of ", gradient.numel(),
          " elements meets an accumulator of ", accumulator.numel());
  const auto flat = gradient.contiguous();
  const bool plain = accumulator.is_cpu() && accumulator.is_contiguous() && accumulator.scalar_type() == at::kFloat;
  if (plain && flat.scalar_type() == at::kFloat) {
    accumulate_typed(accumulator.data_ptr<float>(), flat.const_data_ptr<float>(), flat.numel(), overwrite);
  } else if (plain && flat.scalar_type() == at::kBFloat16) {
    accumulate_typed(accumulator.data_ptr<float>(), flat.const_data_ptr<c10::BFloat16>(), flat.numel(), overwrite);
  } else if (overwrite) {
    accumulator.copy_(flat.view_as(accumulator));
  } else {
    accumulator.add_(flat.view_as(accumulator));
  }
}

double sum_of_squares(const Tensor& values) {
  if (!values.is_cpu() || values.scalar_type() != at::kFloat || !values.is_contiguous()) {
    return values.to(at::kDouble).square().sum().item<double>();
  }
  const float* data = values.const_data_ptr<float>();
  const int64_t count = values.numel(), num_parts = (count + kGrain - 1) / kGrain;
  std::vector<double> parts(static_cast<size_t>(num_parts), 0.0);
  at::parallel_for(0, num_parts, 1, [&](int64_t first, int64_t last) {
    for (int64_t part = first; part < last; ++part) {
      const int64_t end = std::min(count, (part + 1) * kGrain);
      double sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = part * kGrain; i < end; ++i) sum += double{data[i]} * double{data[i]};
      parts[static_cast<size_t>(part)] = sum;
    }
  });
  double total = 0;
  for (const double part : parts) total += part;
  return total;
}

}  // namespace troupe
