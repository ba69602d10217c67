// Launches of write_kv_with_rope_ and paged_decode_attention.
#include "models/kernels/cuda/kernels.h"

namespace troupe::ops::cuda {
namespace {

constexpr int kRopeThreads = 256;
constexpr int kAttentionThreads = 128;
constexpr int kMergeThreads = 64;

template <class T>
__global__ void rope_cache_kernel(T* q, T* k, const T* v, const int32_t* positions, const int64_t* slots,
                                  const float* inverse_frequencies, T* k_cache, T* v_cache, RopeShape shape) {
  DeviceBlock<kRopeThreads> block;
  const int64_t row = blockIdx.x;
  rope_cache_row(block, q + row * shape.q_stride, k + row * shape.k_stride, v + row * shape.v_stride, positions[row],
                 slots[row], inverse_frequencies, k_cache, v_cache, shape);
}

// grid: x sequence, y key/value head x chunk, z split.
template <class T>
__global__ void attend_kernel(const T* q, const T* k_cache, const T* v_cache, const int32_t* block_tables,
                              const int32_t* lengths, float* partial, T* out, AttentionShape shape) {
  extern __shared__ float memory[];
  DeviceBlock<kAttentionThreads> block;
  const int group = shape.num_heads / shape.num_kv_heads;
  const int num_chunks = gridDim.y / shape.num_kv_heads;
  const int kv_head = blockIdx.y / num_chunks, chunk = blockIdx.y % num_chunks;
  const int first = chunk * shape.heads_per_chunk;
  const int num_heads = min(shape.heads_per_chunk, group - first);
  const AttentionShared shared(memory, shape.heads_per_chunk, shape.head_size, shape.tile);
  const int64_t sequence = blockIdx.x;
  const int64_t partial_row = int64_t{shape.num_heads} * shape.num_splits * (shape.head_size + 2);
  attend_split(block, q + sequence * shape.q_stride, k_cache, v_cache, block_tables + sequence * shape.max_blocks,
               lengths[sequence], kv_head, kv_head * group + first, num_heads, static_cast<int>(blockIdx.z),
               out + sequence * shape.num_heads * shape.head_size, partial + sequence * partial_row, shared, shape);
}

// grid: x sequence, y query head.
template <class T>
__global__ void merge_kernel(const float* partial, T* out, int num_splits, int head_size) {
  DeviceBlock<kMergeThreads> block;
  const int64_t row = int64_t{blockIdx.x} * gridDim.y + blockIdx.y;
  merge_splits(block, partial + row * num_splits * (head_size + 2), out + row * head_size, num_splits, head_size);
}

template <class T>
void rope_cache(void* q, void* k, const void* v, const int32_t* positions, const int64_t* slots,
                const float* inverse_frequencies, void* k_cache, void* v_cache, int64_t num_rows,
                const RopeShape& shape, cudaStream_t stream) {
  rope_cache_kernel<<<static_cast<unsigned>(num_rows), kRopeThreads, 0, stream>>>(
      static_cast<T*>(q), static_cast<T*>(k), static_cast<const T*>(v), positions, slots, inverse_frequencies,
      static_cast<T*>(k_cache), static_cast<T*>(v_cache), shape);
}

template <class T>
cudaError_t paged_attention(const void* q, const void* k_cache, const void* v_cache, const int32_t* block_tables,
                            const int32_t* lengths, float* partial, void* out, int64_t num_sequences,
                            const AttentionShape& shape, cudaStream_t stream) {
  const int group = shape.num_heads / shape.num_kv_heads;
  const int num_chunks = (group + shape.heads_per_chunk - 1) / shape.heads_per_chunk;
  const auto sequences = static_cast<unsigned>(num_sequences);
  const dim3 grid(sequences, static_cast<unsigned>(shape.num_kv_heads * num_chunks),
                  static_cast<unsigned>(shape.num_splits));
  const size_t bytes = sizeof(float) * AttentionShared::num_floats(shape.heads_per_chunk, shape.head_size, shape.tile);
  attend_kernel<<<grid, kAttentionThreads, bytes, stream>>>(static_cast<const T*>(q), static_cast<const T*>(k_cache),
                                                            static_cast<const T*>(v_cache), block_tables, lengths,
                                                            partial, static_cast<T*>(out), shape);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess || shape.num_splits == 1) return error;
  merge_kernel<<<dim3(sequences, static_cast<unsigned>(shape.num_heads)), kMergeThreads, 0, stream>>>(
      partial, static_cast<T*>(out), shape.num_splits, shape.head_size);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_rope_cache(Element element, void* q, void* k, const void* v, const int32_t* positions,
                              const int64_t* slots, const float* inverse_frequencies, void* k_cache, void* v_cache,
                              int64_t num_rows, const RopeShape& shape, cudaStream_t stream) {
  const auto launch = element == Element::kFloat32 ? &rope_cache<float> : &rope_cache<Bf16>;
  launch(q, k, v, positions, slots, inverse_frequencies, k_cache, v_cache, num_rows, shape, stream);
  return cudaGetLastError();
}

cudaError_t launch_paged_attention(Element element, const void* q, const void* k_cache, const void* v_cache,
                                   const int32_t* block_tables, const int32_t* lengths, float* partial, void* out,
                                   int64_t num_sequences, const AttentionShape& shape, cudaStream_t stream) {
  const auto launch = element == Element::kFloat32 ? &paged_attention<float> : &paged_attention<Bf16>;
  return launch(q, k_cache, v_cache, block_tables, lengths, partial, out, num_sequences, shape, stream);
}

}  // namespace troupe::ops::cuda
