// Kernel body of write_kv_with_rope_: rotation of q and k, and the write of k and v to their cache slots.
#pragma once

#include "models/kernels/cuda/block.h"

namespace troupe::ops::cuda {

struct RopeShape {
  int num_heads, num_kv_heads, head_size, block_size;
  int64_t q_stride, k_stride, v_stride;  // elements from row to row
};

/// Element offset of (slot, key/value head, 0) in a cache [N, K, B, d].
TROUPE_DEVICE inline int64_t cache_offset(int64_t slot, int kv_head, int num_kv_heads, int block_size, int head_size) {
  const int64_t block = slot / block_size, offset = slot % block_size;
  return ((block * num_kv_heads + kv_head) * block_size + offset) * head_size;
}

/// One row (token) by one block. A thread owns one frequency and walks over the heads, so that sine and cosine are
/// computed once a thread. Needs block.size() >= head_size / 2. slot < 0: rotates, writes nothing to the caches.
template <class T, class Block>
TROUPE_DEVICE void rope_cache_row(Block& block, T* q, T* k, const T* v, int position, int64_t slot,
                                  const float* inverse_frequencies, T* k_cache, T* v_cache, const RopeShape& shape) {
  const int half = shape.head_size / 2;
  const int stride = block.size() / half;  // heads that the block rotates at once
  block.each([&](int thread) {
    const int frequency = thread % half, first = thread / half;
    if (first >= stride) return;
    const float angle = static_cast<float>(position) * inverse_frequencies[frequency];
    const float cosine = cosf(angle), sine = sinf(angle);
    for (int head = first; head < shape.num_heads + shape.num_kv_heads; head += stride) {
      const bool is_query = head < shape.num_heads;
      const int kv_head = head - shape.num_heads;
      T* x = is_query ? q + head * shape.head_size : k + kv_head * shape.head_size;
      const float low = to_float(x[frequency]), high = to_float(x[frequency + half]);
      const T rotated_low = from_float<T>(low * cosine - high * sine);
      const T rotated_high = from_float<T>(high * cosine + low * sine);
      x[frequency] = rotated_low;
      x[frequency + half] = rotated_high;
      if (!is_query && slot >= 0) {
        T* target = k_cache + cache_offset(slot, kv_head, shape.num_kv_heads, shape.block_size, shape.head_size);
        target[frequency] = rotated_low;
        target[frequency + half] = rotated_high;
      }
    }
  });
  if (slot < 0) return;
  block.each([&](int thread) {
    for (int i = thread; i < shape.num_kv_heads * shape.head_size; i += block.size()) {
      const int kv_head = i / shape.head_size;
      v_cache[cache_offset(slot, kv_head, shape.num_kv_heads, shape.block_size, shape.head_size) +
              i % shape.head_size] = v[i];
    }
  });
}

}  // namespace troupe::ops::cuda
