// Launch of sample: one block a row.
#include "models/kernels/cuda/kernels.h"

namespace troupe::ops::cuda {
namespace {

template <class T>
__global__ void __launch_bounds__(kSampleThreads)
    sample_kernel(const T* logits, int64_t row_stride, int vocab_size, uint64_t seed, SamplePointers pointers) {
  __shared__ SampleShared shared;
  DeviceBlock<kSampleThreads> block;
  const int64_t i = blockIdx.x;
  const SampleRow row{pointers.temperature[i],
                      pointers.top_p[i],
                      pointers.min_p[i],
                      pointers.top_k[i],
                      seed,
                      static_cast<uint64_t>(pointers.sample_ids[i]),
                      static_cast<uint32_t>(pointers.token_indices[i])};
  sample_row(block, logits + i * row_stride, vocab_size, row, shared, pointers.ids + i, pointers.log_probs + i);
}

}  // namespace

cudaError_t launch_sample(Element element, const void* logits, int64_t num_rows, int64_t row_stride, int vocab_size,
                          uint64_t seed, const SamplePointers& pointers, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(num_rows);
  if (element == Element::kFloat32) {
    sample_kernel<<<blocks, kSampleThreads, 0, stream>>>(static_cast<const float*>(logits), row_stride, vocab_size,
                                                         seed, pointers);
  } else {
    sample_kernel<<<blocks, kSampleThreads, 0, stream>>>(static_cast<const Bf16*>(logits), row_stride, vocab_size, seed,
                                                         pointers);
  }
  return cudaGetLastError();
}

}  // namespace troupe::ops::cuda
