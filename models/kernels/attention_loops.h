// Block-wise attention over packed segments (FlashAttention: Dao et al. 2022, 2023): 64 queries against 64 keys at a
// time, running softmax in fp32, probabilities computed again in backward. Included once by the file of each
// instruction set.
//
//   forward   one (segment, key/value head): its queries over the parent's keys and its own
//   backward  one (tree of segments, key/value head): nobody else adds to its keys, so there is nothing to lock or
//   reduce
#pragma once

#include <cstdlib>

#include "models/kernels/attention_tiles.h"
#include "models/kernels/training_kernels.h"

namespace troupe::kernels {
namespace {

/// Scratch memory of one task, freed with it.
class Scratch {
 public:
  explicit Scratch(int64_t bytes) : data_(static_cast<char*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64))) {
    if (data_ == nullptr) std::abort();
  }
  ~Scratch() { std::free(data_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  template <class T>
  T* take(int64_t count) {
    T* at = reinterpret_cast<T*>(data_ + used_);
    used_ += (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
    return at;
  }

 private:
  char* data_;
  int64_t used_ = 0;
};

template <class T, class Tile>
struct Attention {
  using Pack = typename Tile::Pack;
  static constexpr int64_t kBlock = 64, kDepth = Tile::kDepth, kLanes = Tile::kLanes, kBlockPacks = kBlock / kDepth;
  static constexpr bool kPairs = kDepth == 2;
  static constexpr float kHidden = -1e30f;

  static int64_t packs(int64_t count) { return (count + kDepth - 1) / kDepth; }
  static int64_t padded(int64_t count) { return (count + kLanes - 1) / kLanes * kLanes; }

  template <class Source>
  static Pack pack_two(const Source* x, int64_t index, int64_t size, int64_t step) {
    const float second = kPairs && index + 1 < size ? to_float(x[(index + 1) * step]) : 0.0f;
    return Tile::pack(to_float(x[index * step]), second);
  }

  /// [rows, size] -> pack[row][k].
  static void pack_rows(const T* x, int64_t x_stride, int64_t rows, int64_t size, Pack* out) {
    const int64_t depth = packs(size);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t k = 0; k < depth; ++k) out[r * depth + k] = pack_two(x + r * x_stride, k * kDepth, size, 1);
    }
  }

  /// [rows, size] -> pack[k][row], zeros up to kBlock rows.
  static void pack_transposed(const T* x, int64_t x_stride, int64_t rows, int64_t size, Pack* out) {
    const int64_t depth = packs(size);
    for (int64_t k = 0; k < depth; ++k) {
      for (int64_t r = 0; r < rows; ++r) out[k * kBlock + r] = pack_two(x + r * x_stride, k * kDepth, size, 1);
      for (int64_t r = rows; r < kBlock; ++r) out[k * kBlock + r] = Pack{};
    }
  }

  /// [rows, size] -> pack[row / depth][column], columns padded with zeros to `stride`.
  template <class Source>
  static void pack_interleaved(const Source* x, int64_t x_stride, int64_t rows, int64_t size, Pack* out,
                               int64_t stride) {
    for (int64_t r = 0; r < rows; r += kDepth) {
      const Source* first = x + r * x_stride;
      Pack* to = out + r / kDepth * stride;
      if (kPairs && r + 1 < rows) {
        const Source* second = first + x_stride;
#pragma omp simd
        for (int64_t c = 0; c < size; ++c) to[c] = Tile::pack(to_float(first[c]), to_float(second[c]));
      } else {
#pragma omp simd
        for (int64_t c = 0; c < size; ++c) to[c] = Tile::pack(to_float(first[c]), 0.0f);
      }
      for (int64_t c = size; c < stride; ++c) to[c] = Pack{};
    }
  }

  /// A block of fp32 scores as a left operand; `storage` is used where the tile is narrower.
  static Left<Tile> as_left(const float* block, int64_t rows, int64_t columns, Pack* storage) {
    if constexpr (kPairs) {
      Bf16* out = reinterpret_cast<Bf16*>(storage);
      for (int64_t r = 0; r < rows; ++r) {
#pragma omp simd
        for (int64_t c = 0; c < columns; ++c) store(out + r * kBlock + c, block[r * kBlock + c]);
      }
      return {storage, kBlockPacks, 1};
    } else {
      return {block, kBlock, 1};
    }
  }

  /// The same block transposed as a left operand.
  static Left<Tile> as_left_transposed(const float* block, int64_t rows, int64_t columns, Pack* storage) {
    if constexpr (kPairs) {
      pack_interleaved(block, kBlock, rows, columns, storage, kBlock);
      return {storage, 1, kBlock};
    } else {
      return {block, 1, kBlock};
    }
  }

  struct Geometry {
    int64_t head_dim, depth, columns, group, row_stride, out_stride, key_offset, value_offset;
    explicit Geometry(const AttentionArguments& a, int64_t kv_head)
        : head_dim(a.head_dim),
          depth(packs(a.head_dim)),
          columns(padded(a.head_dim)),
          group(a.num_heads / a.num_key_value_heads),
          row_stride((a.num_heads + 2 * a.num_key_value_heads) * a.head_dim),
          out_stride(a.num_heads * a.head_dim),
          key_offset((a.num_heads + kv_head) * a.head_dim),
          value_offset((a.num_heads + a.num_key_value_heads + kv_head) * a.head_dim) {}
  };

  struct KeyBlock {
    int64_t token, count, own_offset;  // own_offset -1: the parent's, seen by every query
    int64_t position;                  // of the first key in its document
    Pack *keys, *values;
  };

  static void forward(const AttentionArguments& a, const AttentionSegment& segment, int64_t kv_head) {
    const Geometry g(a, kv_head);
    const T* qkv = static_cast<const T*>(a.qkv);
    const int64_t num_blocks = (segment.parent_length + kBlock - 1) / kBlock + (segment.length + kBlock - 1) / kBlock;
    const int64_t key_packs = g.depth * kBlock, value_packs = kBlockPacks * g.columns;
    Scratch scratch(num_blocks * ((key_packs + value_packs) * 4 + 128 + static_cast<int64_t>(sizeof(KeyBlock))) + 64 +
                    kBlock * (g.depth * 4 + kBlock * 8 + g.columns * 4 + 8) + 1024);
    KeyBlock* blocks = scratch.template take<KeyBlock>(num_blocks);
    int64_t block = 0;
    const auto add_blocks = [&](int64_t begin, int64_t length, bool own) {
      for (int64_t k = 0; k < length; k += kBlock, ++block) {
        const int64_t count = length - k < kBlock ? length - k : kBlock;
        const int64_t position = own ? segment.parent_length + k : k;
        blocks[block] = {begin + k,
                         count,
                         own ? k : -1,
                         position,
                         scratch.template take<Pack>(key_packs),
                         scratch.template take<Pack>(value_packs)};
        const T* row = qkv + (begin + k) * g.row_stride;
        pack_transposed(row + g.key_offset, g.row_stride, count, g.head_dim, blocks[block].keys);
        pack_interleaved(row + g.value_offset, g.row_stride, count, g.head_dim, blocks[block].values, g.columns);
      }
    };
    add_blocks(segment.parent_begin, segment.parent_length, false);
    add_blocks(segment.begin, segment.length, true);
    Pack* queries = scratch.template take<Pack>(kBlock * g.depth);
    Pack* narrow = scratch.template take<Pack>(kBlock * kBlockPacks);
    float* scores = scratch.template take<float>(kBlock * kBlock);
    float* sums = scratch.template take<float>(kBlock * g.columns);
    float* maxima = scratch.template take<float>(kBlock);
    float* totals = scratch.template take<float>(kBlock);
    for (int64_t head = kv_head * g.group; head < (kv_head + 1) * g.group; ++head) {
      for (int64_t q = 0; q < segment.length; q += kBlock) {
        const int64_t rows = segment.length - q < kBlock ? segment.length - q : kBlock;
        const int64_t token = segment.begin + q;
        pack_rows(qkv + token * g.row_stride + head * g.head_dim, g.row_stride, rows, g.head_dim, queries);
        for (int64_t i = 0; i < rows * g.columns; ++i) sums[i] = 0;
        for (int64_t r = 0; r < rows; ++r) maxima[r] = kHidden, totals[r] = 0;
        for (int64_t b = 0; b < num_blocks && blocks[b].own_offset <= q; ++b) {
          const int64_t count = blocks[b].count, width = padded(count);
          const int64_t position = segment.parent_length + q, key = blocks[b].position;
          if (out_of_sight(a, position, key, count) == count) continue;
          product<Tile>(rows, width, g.depth, {queries, g.depth, 1}, blocks[b].keys, kBlock, scores, kBlock, false);
          for (int64_t r = 0; r < rows; ++r) {
            const int64_t seen = visible(blocks[b].own_offset, q + r, count);
            softmax_row(scores + r * kBlock, out_of_sight(a, position + r, key, count), seen, width, a.scale,
                        maxima + r, totals + r, sums + r * g.columns, g.columns);
          }
          product<Tile>(rows, g.columns, packs(count), as_left(scores, rows, width, narrow), blocks[b].values,
                        g.columns, sums, g.columns, true);
        }
        for (int64_t r = 0; r < rows; ++r) {
          T* out = static_cast<T*>(a.output) + (token + r) * g.out_stride + head * g.head_dim;
          const float scale = 1.0f / totals[r];
          for (int64_t i = 0; i < g.head_dim; ++i) store(out + i, sums[r * g.columns + i] * scale);
          a.log_sum_exp[head * a.num_tokens + token + r] = maxima[r] + __builtin_logf(totals[r]);
        }
      }
    }
  }

  /// How many keys of a block the query at `position` of its segment sees.
  static int64_t visible(int64_t own_offset, int64_t position, int64_t count) {
    if (own_offset < 0 || position - own_offset + 1 >= count) return count;
    return position - own_offset + 1;
  }

  /// How many of a block's first keys, which begin at position `key`, lie before the window and the chunk of a query.
  static int64_t out_of_sight(const AttentionArguments& a, int64_t position, int64_t key, int64_t count) {
    const int64_t before_window = position + 1 - a.window, before_chunk = position - position % a.chunk;
    const int64_t hidden = (before_window > before_chunk ? before_window : before_chunk) - key;
    return hidden <= 0 ? 0 : hidden < count ? hidden : count;
  }

  /// Turns a row of scores, of which [hidden, seen) count, into unnormalised probabilities under the new running
  /// maximum and rescales what came before.
  static void softmax_row(float* row, int64_t hidden, int64_t seen, int64_t width, float scale, float* maximum,
                          float* total, float* sums, int64_t columns) {
    if (hidden >= seen) {
      for (int64_t i = 0; i < width; ++i) row[i] = 0;
      return;
    }
    for (int64_t i = 0; i < hidden; ++i) row[i] = kHidden;
    for (int64_t i = seen; i < width; ++i) row[i] = kHidden;
    float top = kHidden;
#pragma omp simd reduction(max : top)
    for (int64_t i = 0; i < width; ++i) top = row[i] > top ? row[i] : top;
    const float scaled_top = top * scale, now = scaled_top > *maximum ? scaled_top : *maximum;
    const float correction = fast_exp(*maximum - now);
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < width; ++i) {
      const float p = fast_exp(row[i] * scale - now);
      row[i] = p;
      sum += p;
    }
    if (correction != 1.0f) {
#pragma omp simd
      for (int64_t i = 0; i < columns; ++i) sums[i] *= correction;
    }
    *total = *total * correction + sum;
    *maximum = now;
  }

  /// Scratch of a backward task.
  struct Backward {
    Pack *keys_t, *values_t, *keys_i, *queries, *queries_i, *d_out, *d_out_i, *narrow;
    float *probabilities, *d_scores, *d_keys, *d_values, *d_queries, *delta;
    int64_t tree_tokens;
  };

  static void backward(const AttentionArguments& a, const AttentionSegment* segments, int64_t num_segments,
                       int64_t kv_head) {
    const Geometry g(a, kv_head);
    int64_t tree_tokens = 0;
    for (int64_t s = 0; s < num_segments; ++s) tree_tokens += segments[s].length;
    Scratch scratch(4 * (g.depth * kBlock * 4 + kBlockPacks * g.columns * 3 + kBlock * kBlock + kBlock * kBlock * 2 +
                         kBlock * g.columns * 2 + g.group * tree_tokens * (g.columns + 1)) +
                    2048);
    Backward w;
    w.tree_tokens = tree_tokens;
    w.keys_t = scratch.template take<Pack>(g.depth * kBlock);
    w.values_t = scratch.template take<Pack>(g.depth * kBlock);
    w.queries = scratch.template take<Pack>(g.depth * kBlock);
    w.d_out = scratch.template take<Pack>(g.depth * kBlock);
    w.keys_i = scratch.template take<Pack>(kBlockPacks * g.columns);
    w.queries_i = scratch.template take<Pack>(kBlockPacks * g.columns);
    w.d_out_i = scratch.template take<Pack>(kBlockPacks * g.columns);
    w.narrow = scratch.template take<Pack>(kBlock * kBlock);
    w.probabilities = scratch.template take<float>(kBlock * kBlock);
    w.d_scores = scratch.template take<float>(kBlock * kBlock);
    w.d_keys = scratch.template take<float>(kBlock * g.columns);
    w.d_values = scratch.template take<float>(kBlock * g.columns);
    w.d_queries = scratch.template take<float>(g.group * tree_tokens * g.columns);
    w.delta = scratch.template take<float>(g.group * tree_tokens);
    for (int64_t i = 0; i < g.group * tree_tokens * g.columns; ++i) w.d_queries[i] = 0;
    compute_delta(a, g, segments, num_segments, kv_head, w);
    for (int64_t s = 0; s < num_segments; ++s) {
      for (int64_t k = 0; k < segments[s].length; k += kBlock) {
        backward_keys(a, g, segments, num_segments, s, k, kv_head, w);
      }
    }
    int64_t place = 0;
    for (int64_t s = 0; s < num_segments; ++s) {
      for (int64_t i = 0; i < segments[s].length; ++i, ++place) {
        for (int64_t h = 0; h < g.group; ++h) {
          const float* from = w.d_queries + (h * tree_tokens + place) * g.columns;
          T* to =
              static_cast<T*>(a.d_qkv) + (segments[s].begin + i) * g.row_stride + (kv_head * g.group + h) * g.head_dim;
          for (int64_t c = 0; c < g.head_dim; ++c) store(to + c, from[c]);
        }
      }
    }
  }

  /// delta = sum over the head of d_output * output: what the softmax's backward subtracts.
  static void compute_delta(const AttentionArguments& a, const Geometry& g, const AttentionSegment* segments,
                            int64_t num_segments, int64_t kv_head, const Backward& w) {
    int64_t place = 0;
    for (int64_t s = 0; s < num_segments; ++s) {
      for (int64_t i = 0; i < segments[s].length; ++i, ++place) {
        for (int64_t h = 0; h < g.group; ++h) {
          const int64_t at = (segments[s].begin + i) * g.out_stride + (kv_head * g.group + h) * g.head_dim;
          const T* out = static_cast<const T*>(a.output) + at;
          const T* d_out = static_cast<const T*>(a.d_output) + at;
          float sum = 0;
#pragma omp simd reduction(+ : sum)
          for (int64_t c = 0; c < g.head_dim; ++c) sum += to_float(out[c]) * to_float(d_out[c]);
          w.delta[h * w.tree_tokens + place] = sum;
        }
      }
    }
  }

  /// All that one block of keys gives and gets: its own segment's later queries, and for a root those of every child.
  static void backward_keys(const AttentionArguments& a, const Geometry& g, const AttentionSegment* segments,
                            int64_t num_segments, int64_t key_segment, int64_t key_begin, int64_t kv_head,
                            const Backward& w) {
    const AttentionSegment& keys = segments[key_segment];
    const int64_t count = keys.length - key_begin < kBlock ? keys.length - key_begin : kBlock;
    const T* key_row = static_cast<const T*>(a.qkv) + (keys.begin + key_begin) * g.row_stride;
    pack_transposed(key_row + g.key_offset, g.row_stride, count, g.head_dim, w.keys_t);
    pack_transposed(key_row + g.value_offset, g.row_stride, count, g.head_dim, w.values_t);
    pack_interleaved(key_row + g.key_offset, g.row_stride, count, g.head_dim, w.keys_i, g.columns);
    for (int64_t i = 0; i < kBlock * g.columns; ++i) w.d_keys[i] = w.d_values[i] = 0;
    int64_t place = 0;
    for (int64_t s = 0; s < num_segments; place += segments[s].length, ++s) {
      if (s != key_segment && key_segment != 0) continue;
      const bool own = s == key_segment;
      for (int64_t q = own ? key_begin : 0; q < segments[s].length; q += kBlock) {
        const int64_t rows = segments[s].length - q < kBlock ? segments[s].length - q : kBlock;
        const int64_t key = keys.parent_length + key_begin, position = segments[s].parent_length + q;
        if (out_of_sight(a, position, key, count) == count) break;
        for (int64_t h = 0; h < g.group; ++h) {
          backward_block(a, g, segments[s].begin + q, rows, place + q, kv_head * g.group + h, h, count, position, key,
                         own, w);
        }
      }
    }
    T* d_row = static_cast<T*>(a.d_qkv) + (keys.begin + key_begin) * g.row_stride;
    for (int64_t r = 0; r < count; ++r) {
      for (int64_t c = 0; c < g.head_dim; ++c) {
        store(d_row + r * g.row_stride + g.key_offset + c, w.d_keys[r * g.columns + c]);
        store(d_row + r * g.row_stride + g.value_offset + c, w.d_values[r * g.columns + c]);
      }
    }
  }

  /// One block of queries of one head, the first at `position`, and keys from position `key` on; `own`: both of one
  /// segment.
  static void backward_block(const AttentionArguments& a, const Geometry& g, int64_t token, int64_t rows, int64_t place,
                             int64_t head, int64_t head_in_group, int64_t count, int64_t position, int64_t key,
                             bool own, const Backward& w) {
    const T* query = static_cast<const T*>(a.qkv) + token * g.row_stride + head * g.head_dim;
    const T* d_out = static_cast<const T*>(a.d_output) + token * g.out_stride + head * g.head_dim;
    pack_rows(query, g.row_stride, rows, g.head_dim, w.queries);
    pack_rows(d_out, g.out_stride, rows, g.head_dim, w.d_out);
    pack_interleaved(query, g.row_stride, rows, g.head_dim, w.queries_i, g.columns);
    pack_interleaved(d_out, g.out_stride, rows, g.head_dim, w.d_out_i, g.columns);
    const int64_t width = padded(count);
    product<Tile>(rows, width, g.depth, {w.queries, g.depth, 1}, w.keys_t, kBlock, w.probabilities, kBlock, false);
    product<Tile>(rows, width, g.depth, {w.d_out, g.depth, 1}, w.values_t, kBlock, w.d_scores, kBlock, false);
    for (int64_t r = 0; r < rows; ++r) {
      float* p_row = w.probabilities + r * kBlock;
      float* d_row = w.d_scores + r * kBlock;
      const int64_t seen = own ? visible(0, position + r - key, count) : count;
      const int64_t hidden = out_of_sight(a, position + r, key, count);
      for (int64_t i = 0; i < hidden; ++i) p_row[i] = kHidden;
      for (int64_t i = seen; i < width; ++i) p_row[i] = kHidden;
      const float log_sum_exp = a.log_sum_exp[head * a.num_tokens + token + r];
      const float delta = w.delta[head_in_group * w.tree_tokens + place + r], scale = a.scale;
#pragma omp simd
      for (int64_t i = 0; i < width; ++i) {
        const float p = fast_exp(p_row[i] * scale - log_sum_exp);
        p_row[i] = p;
        d_row[i] = p * (d_row[i] - delta) * scale;
      }
    }
    const int64_t depth = packs(rows);
    float* d_queries = w.d_queries + (head_in_group * w.tree_tokens + place) * g.columns;
    product<Tile>(count, g.columns, depth, as_left_transposed(w.probabilities, rows, width, w.narrow), w.d_out_i,
                  g.columns, w.d_values, g.columns, true);
    product<Tile>(count, g.columns, depth, as_left_transposed(w.d_scores, rows, width, w.narrow), w.queries_i,
                  g.columns, w.d_keys, g.columns, true);
    product<Tile>(rows, g.columns, packs(count), as_left(w.d_scores, rows, width, w.narrow), w.keys_i, g.columns,
                  d_queries, g.columns, true);
  }
};

}  // namespace
}  // namespace troupe::kernels
