// Launches of rms_norm and fused_adamw_.
#include "models/kernels/cuda/kernels.h"

namespace troupe::ops::cuda {
namespace {

constexpr int kNormThreads = 128;
constexpr int kAdamWThreads = 256;

template <class T>
__global__ void rms_norm_kernel(const T* x, const T* weight, T* y, int size, float eps, bool packed) {
  DeviceBlock<kNormThreads> block;
  const int64_t row = int64_t{blockIdx.x} * size;
  rms_norm_row(block, x + row, weight, y + row, size, eps, packed);
}

template <class G>
__global__ void adamw_kernel(float* parameter, const G* gradient, float* exp_avg, float* exp_avg_sq, int64_t size,
                             AdamWConstants constants) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < size; i += step) {
    adamw_element(parameter[i], to_float(gradient[i]), exp_avg[i], exp_avg_sq[i], constants);
  }
}

bool is_packed(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

template <class T>
void rms_norm(const void* x, const void* weight, void* y, int64_t num_rows, int size, float eps, cudaStream_t stream) {
  const bool packed = size % Pack<T>::kSize == 0 && is_packed(x) && is_packed(weight) && is_packed(y);
  rms_norm_kernel<T><<<static_cast<unsigned>(num_rows), kNormThreads, 0, stream>>>(
      static_cast<const T*>(x), static_cast<const T*>(weight), static_cast<T*>(y), size, eps, packed);
}

}  // namespace

cudaError_t launch_rms_norm(Element element, const void* x, const void* weight, void* y, int64_t num_rows, int size,
                            float eps, cudaStream_t stream) {
  if (element == Element::kFloat32) {
    rms_norm<float>(x, weight, y, num_rows, size, eps, stream);
  } else {
    rms_norm<Bf16>(x, weight, y, num_rows, size, eps, stream);
  }
  return cudaGetLastError();
}

cudaError_t launch_adamw(float* parameter, Element gradient_element, const void* gradient, float* exp_avg,
                         float* exp_avg_sq, int64_t size, const AdamWConstants& constants, cudaStream_t stream) {
  const int64_t wanted = (size + kAdamWThreads - 1) / kAdamWThreads;
  const auto blocks = static_cast<unsigned>(wanted < 65536 ? wanted : 65536);
  if (gradient_element == Element::kFloat32) {
    adamw_kernel<<<blocks, kAdamWThreads, 0, stream>>>(parameter, static_cast<const float*>(gradient), exp_avg,
                                                       exp_avg_sq, size, constants);
  } else {
    adamw_kernel<<<blocks, kAdamWThreads, 0, stream>>>(parameter, static_cast<const Bf16*>(gradient), exp_avg,
                                                       exp_avg_sq, size, constants);
  }
  return cudaGetLastError();
}

}  // namespace troupe::ops::cuda
