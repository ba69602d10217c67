// Launches of the CUDA kernels over raw device pointers; no torch here, so that nvcc compiles little. All arguments are
// checked and all outputs allocated by ops_cuda.cpp. Every function returns what the launch itself reported.
#pragma once

#include <cuda_runtime_api.h>

#include "models/kernels/cuda/paged_attention_body.h"
#include "models/kernels/cuda/training_body.h"
#include "models/kernels/cuda/sample_body.h"

namespace troupe::ops::cuda {

enum class Element { kFloat32, kBfloat16 };

cudaError_t launch_rms_norm(Element element, const void* x, const void* weight, void* y, int64_t num_rows, int size,
                            float eps, cudaStream_t stream);

cudaError_t launch_adamw(float* parameter, Element gradient_element, const void* gradient, float* exp_avg,
                         float* exp_avg_sq, int64_t size, const AdamWConstants& constants, cudaStream_t stream);

cudaError_t launch_rope_cache(Element element, void* q, void* k, const void* v, const int32_t* positions,
                              const int64_t* slots, const float* inverse_frequencies, void* k_cache, void* v_cache,
                              int64_t num_rows, const RopeShape& shape, cudaStream_t stream);

/// `partial`: fp32 [S, H, splits, d + 2], null where there is one split.
cudaError_t launch_paged_attention(Element element, const void* q, const void* k_cache, const void* v_cache,
                                   const int32_t* block_tables, const int32_t* lengths, float* partial, void* out,
                                   int64_t num_sequences, const AttentionShape& shape, cudaStream_t stream);

struct SamplePointers {
  const float *temperature, *top_p, *min_p;
  const int32_t* top_k;
  const int64_t* sample_ids;
  const int32_t* token_indices;
  int64_t* ids;
  float* log_probs;
};
cudaError_t launch_sample(Element element, const void* logits, int64_t num_rows, int64_t row_stride, int vocab_size,
                          uint64_t seed, const SamplePointers& pointers, cudaStream_t stream);

}  // namespace troupe::ops::cuda
