// Kernel bodies of paged_decode_attention: online softmax over a range of a sequence's tokens (Milakov and Gimelshein
// 2018), and the merge of such ranges, as in flash-decoding: long contexts are cut into splits so that few sequences
// still fill the device.
//
//   grid (sequence, key/value head x chunk of its query heads, split) --attend_split--> partial [S, H, splits, d + 2]
//   grid (sequence, query head)                                       --merge_splits--> out [S, H, d]
//
// With one split the first writes `out` itself.
#pragma once

#include "models/kernels/cuda/rope_cache_body.h"

namespace troupe::ops::cuda {

struct AttentionShape {
  int num_heads, num_kv_heads, head_size, block_size, max_blocks;
  int64_t q_stride;     // elements from row to row
  int heads_per_chunk;  // query heads of one key/value head that a block serves at once
  int tile;             // tokens in shared memory at a time
  int num_splits, split_length;
  float scale;
};

/// Shared memory of one block, in floats. Keys have one float of padding a row, against bank conflicts.
struct AttentionShared {
  float *q, *keys, *values, *scores, *sums, *maxima, *totals, *corrections;

  static constexpr int num_floats(int heads, int head_size, int tile) {
    return 2 * heads * head_size + tile * (2 * head_size + 1) + heads * tile + 3 * heads;
  }
  TROUPE_DEVICE AttentionShared(float* memory, int heads, int head_size, int tile) {
    q = memory;
    sums = q + heads * head_size;
    keys = sums + heads * head_size;
    values = keys + tile * (head_size + 1);
    scores = values + tile * head_size;
    maxima = scores + heads * tile;
    totals = maxima + heads;
    corrections = totals + heads;
  }
};

/// Heads and tile so that the shared memory stays under the 48 KiB that every device gives without asking.
inline void choose_attention_tile(AttentionShape& shape) {
  const int group = shape.num_heads / shape.num_kv_heads, most = shape.head_size <= 128 ? 8 : 4;
  shape.heads_per_chunk = group < most ? group : most;
  shape.tile = shape.head_size <= 64 ? 64 : shape.head_size <= 128 ? 32 : 16;
}

/// Splits so that `num_blocks_wanted` blocks run, none shorter than 256 tokens. `longest`: tokens that a table can
/// hold.
inline void choose_attention_splits(AttentionShape& shape, int64_t num_sequences, int64_t longest,
                                    int num_blocks_wanted) {
  constexpr int64_t kShortest = 256;
  const int group = shape.num_heads / shape.num_kv_heads;
  const int64_t chunks = (group + shape.heads_per_chunk - 1) / shape.heads_per_chunk;
  const int64_t blocks = num_sequences * shape.num_kv_heads * chunks;
  int64_t splits = (num_blocks_wanted + blocks - 1) / blocks;
  const int64_t most = (longest + kShortest - 1) / kShortest;
  splits = splits < most ? splits : most;
  splits = splits < 1 ? 1 : splits;
  const int64_t length = (longest + splits - 1) / splits;
  shape.split_length = static_cast<int>((length + shape.tile - 1) / shape.tile * shape.tile);
  if (shape.split_length < shape.tile) shape.split_length = shape.tile;
  shape.num_splits = longest == 0 ? 1 : static_cast<int>((longest + shape.split_length - 1) / shape.split_length);
}

/// Copies rows [first, first + count) of one key/value head from the paged cache to `target` with the given row stride.
template <class T, class Block>
TROUPE_DEVICE void load_tile(Block& block, const T* cache, const int32_t* table, int kv_head, int first, int count,
                             float* target, int target_stride, const AttentionShape& shape) {
  constexpr int kPack = Pack<T>::kSize;
  const int d = shape.head_size;
  block.each([&](int thread) {
    const int step = d % kPack == 0 ? kPack : 1;
    for (int i = thread * step; i < count * d; i += block.size() * step) {
      const int row = i / d, column = i % d, token = first + row;
      const int64_t slot = int64_t{table[token / shape.block_size]} * shape.block_size + token % shape.block_size;
      const T* source = cache + cache_offset(slot, kv_head, shape.num_kv_heads, shape.block_size, d) + column;
      float* to = target + row * target_stride + column;
      if (step == 1) {
        *to = to_float(*source);
      } else {
        const Pack<T> pack = *reinterpret_cast<const Pack<T>*>(source);
        for (int j = 0; j < kPack; ++j) to[j] = to_float(pack.values[j]);
      }
    }
  });
}

/// One block: query heads [first_head, first_head + num_heads) of `kv_head` over the tokens of `split`. Writes to `out`
/// (row of the sequence, [H, d]) with one split, else to `partial` [H, splits, d + 2]: sums, then maximum, then total.
template <class T, class Block>
TROUPE_DEVICE void attend_split(Block& block, const T* q, const T* k_cache, const T* v_cache, const int32_t* table,
                                int length, int kv_head, int first_head, int num_heads, int split, T* out,
                                float* partial, const AttentionShared& shared, const AttentionShape& shape) {
  const int d = shape.head_size, tile = shape.tile;
  const int begin = split * shape.split_length;
  const int end = length < begin + shape.split_length ? length : begin + shape.split_length;
  block.each([&](int thread) {
    for (int i = thread; i < num_heads * d; i += block.size()) {
      shared.q[i] = to_float(q[first_head * d + i]) * shape.scale;
      shared.sums[i] = 0;
    }
    if (thread < num_heads) {
      shared.maxima[thread] = -INFINITY;
      shared.totals[thread] = 0;
    }
  });
  for (int first = begin; first < end; first += tile) {
    const int count = end - first < tile ? end - first : tile;
    load_tile(block, k_cache, table, kv_head, first, count, shared.keys, d + 1, shape);
    load_tile(block, v_cache, table, kv_head, first, count, shared.values, d, shape);
    block.each([&](int thread) {
      for (int i = thread; i < num_heads * tile; i += block.size()) {
        const float *query = shared.q + i / tile * d, *key = shared.keys + i % tile * (d + 1);
        float score = 0;
        if (i % tile < count) {
          for (int j = 0; j < d; ++j) score += query[j] * key[j];
        }
        shared.scores[i] = score;
      }
    });
    block.each([&](int thread) {
      if (thread >= num_heads) return;
      const float* scores = shared.scores + thread * tile;
      float maximum = shared.maxima[thread];
      for (int j = 0; j < count; ++j) maximum = fmaxf(maximum, scores[j]);
      shared.corrections[thread] = expf(shared.maxima[thread] - maximum);  // 0 in the first tile
      shared.maxima[thread] = maximum;
    });
    block.each([&](int thread) {
      for (int i = thread; i < num_heads * tile; i += block.size()) {
        shared.scores[i] = i % tile < count ? expf(shared.scores[i] - shared.maxima[i / tile]) : 0;
      }
    });
    block.each([&](int thread) {
      for (int i = thread; i < num_heads * d; i += block.size()) {
        const float *weights = shared.scores + i / d * tile, *values = shared.values + i % d;
        float sum = shared.sums[i] * shared.corrections[i / d];
        for (int j = 0; j < count; ++j) sum += weights[j] * values[j * d];
        shared.sums[i] = sum;
      }
      if (thread < num_heads) {
        float total = shared.totals[thread] * shared.corrections[thread];
        for (int j = 0; j < count; ++j) total += shared.scores[thread * tile + j];
        shared.totals[thread] = total;
      }
    });
  }
  block.each([&](int thread) {
    for (int i = thread; i < num_heads * d; i += block.size()) {
      const int head = i / d;
      if (shape.num_splits == 1) {
        const float total = shared.totals[head];
        out[first_head * d + i] = from_float<T>(total > 0 ? shared.sums[i] / total : 0);
      } else {
        float* to = partial + (int64_t{first_head + head} * shape.num_splits + split) * (d + 2);
        to[i % d] = shared.sums[i];
        if (i % d == 0) {
          to[d] = shared.maxima[head];
          to[d + 1] = shared.totals[head];
        }
      }
    }
  });
}

/// One block: the splits of one query head, partial [splits, d + 2] -> out [d]. Empty splits have a total of 0.
template <class T, class Block>
TROUPE_DEVICE void merge_splits(Block& block, const float* partial, T* out, int num_splits, int head_size) {
  const int stride = head_size + 2;
  block.each([&](int thread) {
    for (int i = thread; i < head_size; i += block.size()) {
      float maximum = -INFINITY;
      for (int s = 0; s < num_splits; ++s) maximum = fmaxf(maximum, partial[s * stride + head_size]);
      float sum = 0, total = 0;
      for (int s = 0; s < num_splits; ++s) {
        const float* split = partial + s * stride;
        if (!(split[head_size + 1] > 0)) continue;
        const float weight = expf(split[head_size] - maximum);
        sum += weight * split[i];
        total += weight * split[head_size + 1];
      }
      out[i] = from_float<T>(total > 0 ? sum / total : 0);
    }
  });
}

}  // namespace troupe::ops::cuda
