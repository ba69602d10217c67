// Latent attention over its compressed cache: a token keeps one normalised vector, from which the keys and values of
// all heads come, and one rotated key. Heads meet that vector itself, so the expansion is applied to each row's query
// and to what it gathered, never to the cache.
#include <algorithm>

#include "rollout/forward_state.h"

namespace troupe {
namespace {

template <class T>
class LatentPart {
 public:
  LatentPart(ForwardState<T>& state, int64_t layer_index)
      : s_(state),
        index_(layer_index),
        layer_(state.model->layers[static_cast<size_t>(layer_index)]),
        weights_(layer_.latent),
        sizes_(state.config.latent),
        num_heads_(state.config.num_attention_heads),
        rank_(sizes_.key_value_rank),
        key_size_(rank_ + sizes_.rotary_dim),
        key_begin_(round_up(num_heads_ * sizes_.query_dim(), kPanelColumns)),
        joined_begin_(key_begin_ + round_up(key_size_, kPanelColumns)),
        joined_stride_(round_up(key_size_, kPanelColumns)),
        narrow_stride_(latent_narrow_size(sizes_)) {}

  void run(Walk& walk) {
    project_keys(walk);
    project_queries(walk);
    s_.share(walk, s_.num_rows(), 4, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) place_row(r);
    });
    s_.share(walk, num_heads_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t h = begin; h < end; ++h) absorb_head(h);
    });
    s_.share(walk, s_.num_rows() * num_heads_, 4, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) attend(walk.thread, i / num_heads_, i % num_heads_);
    });
    s_.share(walk, num_heads_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t h = begin; h < end; ++h) expand_head(walk.thread, h);
    });
    s_.add_product(walk, layer_.output, s_.input.row(0), s_.input.stride, layer_.output_bias, layer_.mixer_output_norm);
  }

 private:
  float* joined(int64_t r, int64_t head) { return s_.wide.row(r) + joined_begin_ + head * joined_stride_; }
  T* narrow_head(int64_t r, int64_t head) { return s_.narrow.row(r) + head * narrow_stride_; }

  void multiply_into(Walk& walk, const PackedMatrix<T>& matrix, const T* a, int64_t a_stride, int64_t column) {
    s_.share(walk, matrix.num_panels, 1, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        s_.typed().gemm_panel(a, a_stride, s_.num_rows(), matrix.panel(p), matrix.depth,
                              s_.wide.row(0) + column + p * kPanelColumns, s_.wide.stride);
      }
    });
  }

  void project_keys(Walk& walk) {
    multiply_into(walk, weights_.key_value_down, s_.input.row(0), s_.input.stride, key_begin_);
  }

  void project_queries(Walk& walk) {
    if (sizes_.query_rank == 0) {
      multiply_into(walk, weights_.query, s_.input.row(0), s_.input.stride, 0);
      return;
    }
    // The query's own compression stands where the joined queries will be.
    multiply_into(walk, weights_.query_down, s_.input.row(0), s_.input.stride, joined_begin_);
    s_.share(walk, s_.num_rows(), 4, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        float* compressed = s_.wide.row(r) + joined_begin_;
        if (!weights_.query_down_bias.empty()) {
          s_.kernels.add(weights_.query_down_bias.data(), sizes_.query_rank, compressed);
        }
        s_.typed().rms_norm(compressed, weights_.query_norm.data(), sizes_.query_rank, norm_eps(), s_.narrow.row(r));
      }
    });
    multiply_into(walk, weights_.query, s_.narrow.row(0), s_.narrow.stride, 0);
  }

  float norm_eps() const { return static_cast<float>(sizes_.norm_eps); }

  /// Norm and rotation of the compressed key and its write to the cache; rotation of the queries' rotary parts; their
  /// plain parts, narrowed.
  void place_row(int64_t r) {
    const Row& row = (*s_.rows)[static_cast<size_t>(r)];
    float* query = s_.wide.row(r);
    float* key = query + key_begin_;
    const int64_t half = sizes_.rotary_dim / 2;
    const float* cosines = s_.main_rotations.cosines.data() + row.position * half;
    const float* sines = s_.main_rotations.sines.data() + row.position * half;
    if (!weights_.key_value_down_bias.empty()) s_.kernels.add(weights_.key_value_down_bias.data(), key_size_, key);
    s_.kernels.f32.rms_norm(key, weights_.key_value_norm.data(), rank_, norm_eps(), key);
    s_.kernels.rotate(key + rank_, cosines, sines, half);
    if (row.slot >= 0) s_.typed().convert(key, key_size_, s_.cache_region(index_, 0) + row.slot * key_size_);
    for (int64_t h = 0; h < num_heads_; ++h) {
      float* head = query + h * sizes_.query_dim();
      s_.kernels.rotate(head + sizes_.plain_dim, cosines, sines, half);
      s_.typed().convert(head, sizes_.plain_dim, narrow_head(r, h));
    }
  }

  /// The plain part of a head's query in the space of the compressed keys, beside its rotary part.
  void absorb_head(int64_t h) {
    const auto& matrix = weights_.query_to_latent[static_cast<size_t>(h)];
    for (int64_t p = 0; p < matrix.num_panels; ++p) {
      s_.typed().gemm_panel(narrow_head(0, h), s_.narrow.stride, s_.num_rows(), matrix.panel(p), matrix.depth,
                            joined(0, h) + p * kPanelColumns, s_.wide.stride);
    }
    for (int64_t r = 0; r < s_.num_rows(); ++r) {
      const float* rotary = s_.wide.row(r) + h * sizes_.query_dim() + sizes_.plain_dim;
      std::copy_n(rotary, sizes_.rotary_dim, joined(r, h) + rank_);
    }
  }

  void attend(int thread, int64_t r, int64_t h) {
    const Row& row = (*s_.rows)[static_cast<size_t>(r)];
    AttentionTask<T> task;
    task.query = joined(r, h);
    task.keys = task.values = s_.cache_region(index_, 0);
    task.blocks = row.blocks;
    task.block_stride = s_.caches[static_cast<size_t>(index_)].block_elements;
    task.block_tokens = s_.options.block_tokens;
    task.length = row.position + 1;
    task.num_heads = 1;
    task.head_size = key_size_;
    task.scale = static_cast<float>(s_.config.softmax_scale());
    task.scores = s_.per_thread[static_cast<size_t>(thread)].scores.data();
    task.scores_stride = s_.scores_stride;
    task.out = narrow_head(r, h);  // the compressed values, then a mean of rotated keys that nobody reads
    s_.typed().attend(task);
  }

  void expand_head(int thread, int64_t h) {
    const auto& matrix = weights_.latent_to_value[static_cast<size_t>(h)];
    float* product = s_.per_thread[static_cast<size_t>(thread)].product.data();
    for (int64_t p = 0; p < matrix.num_panels; ++p) {
      const int64_t column = p * kPanelColumns, columns = std::min(kPanelColumns, sizes_.value_dim - column);
      for (int64_t first = 0; first < s_.num_rows(); first += kRowChunk) {
        const int64_t count = std::min(kRowChunk, s_.num_rows() - first);
        s_.typed().gemm_panel(narrow_head(first, h), s_.narrow.stride, count, matrix.panel(p), matrix.depth, product,
                              kPanelColumns);
        for (int64_t r = 0; r < count; ++r) {
          s_.typed().convert(product + r * kPanelColumns, columns,
                             s_.input.row(first + r) + h * sizes_.value_dim + column);
        }
      }
    }
  }

  ForwardState<T>& s_;
  const int64_t index_;
  const PackedLayer<T>& layer_;
  const PackedLatent<T>& weights_;
  const LatentConfig& sizes_;
  const int64_t num_heads_, rank_, key_size_, key_begin_, joined_begin_, joined_stride_, narrow_stride_;
};

}  // namespace

template <class T>
void run_latent_attention(ForwardState<T>& state, Walk& walk, int64_t layer_index) {
  LatentPart<T>(state, layer_index).run(walk);
}
template void run_latent_attention(ForwardState<float>&, Walk&, int64_t);
template void run_latent_attention(ForwardState<Bf16>&, Walk&, int64_t);

}  // namespace troupe
