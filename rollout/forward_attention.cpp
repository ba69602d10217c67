// Attention over the paged cache: projection, norms of the heads, rope, the write to the cache, and the softmax.
#include <algorithm>

#include "rollout/change_row.h"

namespace troupe {
namespace {

template <class T>
class AttentionPart {
 public:
  AttentionPart(ForwardState<T>& state, int64_t layer_index)
      : s_(state),
        index_(layer_index),
        description_(state.config.layer(layer_index)),
        layer_(state.model->layers[static_cast<size_t>(layer_index)]),
        weights_(layer_.attention),
        head_size_(state.config.head_dim),
        num_heads_(state.config.num_attention_heads),
        num_kv_heads_(state.config.num_key_value_heads),
        group_(num_heads_ / num_kv_heads_),
        query_size_(num_heads_ * head_size_),
        kv_size_(num_kv_heads_ * head_size_) {}

  void run(Walk& walk) {
    s_.multiply(walk, weights_.projection, s_.input.row(0), s_.input.stride, s_.wide);
    s_.share(walk, s_.num_rows(), 4, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) place_row(r);
    });
    s_.share(walk, s_.num_rows() * num_kv_heads_, 2, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) attend(walk.thread, i / num_kv_heads_, i % num_kv_heads_);
    });
    s_.add_product(walk, layer_.output, s_.input.row(0), s_.input.stride, layer_.output_bias, layer_.mixer_output_norm);
  }

 private:
  /// Bias, norm of the heads, rotation, and the write to the cache.
  void place_row(int64_t r) {
    const Row& row = (*s_.rows)[static_cast<size_t>(r)];
    float* query = s_.wide.row(r);
    float* key = query + query_size_;
    const float* value = key + kv_size_;
    const auto& config = s_.config;
    if (!weights_.bias.empty()) {
      s_.kernels.add(weights_.bias.data(), static_cast<int64_t>(weights_.bias.size()), query);
    }
    if (config.norm_over_heads) {
      s_.kernels.f32.rms_norm(query, weights_.query_norm.data(), query_size_, s_.epsilon(), query);
      s_.kernels.f32.rms_norm(key, weights_.key_norm.data(), kv_size_, s_.epsilon(), key);
    }
    for (int64_t h = 0; h < num_heads_ + num_kv_heads_; ++h) {
      transform_head(query + h * head_size_, h < num_heads_ ? weights_.query_norm : weights_.key_norm, row.position);
    }
    if (description_.rope == LayerRope::kNone && config.temperature_scale != 0) {
      const float steps =
          std::floor((static_cast<float>(row.position) + 1) / static_cast<float>(config.temperature_floor));
      const float factor = std::log1p(steps) * static_cast<float>(config.temperature_scale) + 1;
      for (int64_t i = 0; i < query_size_; ++i) query[i] *= factor;
    }
    if (row.slot < 0) return;
    const int64_t tokens = s_.options.block_tokens, block = row.slot / tokens, offset = row.slot % tokens;
    const auto& place = s_.caches[static_cast<size_t>(index_)];
    for (int64_t h = 0; h < num_kv_heads_; ++h) {
      const int64_t at = block * place.block_elements + (h * tokens + offset) * head_size_;
      s_.typed().convert(key + h * head_size_, head_size_, s_.cache_region(index_, 0) + at);
      s_.typed().convert(value + h * head_size_, head_size_, s_.cache_region(index_, 1) + at);
    }
  }

  void transform_head(float* head, const std::vector<float>& norm, int64_t position) {
    const auto& config = s_.config;
    if (!norm.empty() && !config.norm_over_heads) {
      s_.kernels.f32.rms_norm(head, norm.data(), head_size_, s_.epsilon(), head);
    }
    if (description_.rope == LayerRope::kNone) return;
    const auto& rotations = description_.rope == LayerRope::kLocal ? s_.local_rotations : s_.main_rotations;
    const int64_t half = config.rotated_dim() / 2;
    s_.kernels.rotate(head, rotations.cosines.data() + position * half, rotations.sines.data() + position * half, half);
    if (!config.unit_query_key) return;
    float squares = 0;
    for (int64_t i = 0; i < head_size_; ++i) squares += head[i] * head[i];
    const float factor = 1.0f / std::sqrt(squares / static_cast<float>(head_size_) + s_.epsilon());
    for (int64_t i = 0; i < head_size_; ++i) head[i] *= factor;
  }

  void attend(int thread, int64_t r, int64_t kv_head) {
    const Row& row = (*s_.rows)[static_cast<size_t>(r)];
    const auto& place = s_.caches[static_cast<size_t>(index_)];
    const int64_t tokens = s_.options.block_tokens;
    int64_t first = description_.window > 0 ? std::max<int64_t>(row.position + 1 - description_.window, 0) : 0;
    if (description_.chunk > 0) first = std::max(first, row.position / description_.chunk * description_.chunk);
    const int64_t first_block = first / tokens, first_head = kv_head * group_;
    AttentionTask<T> task;
    task.query = s_.wide.row(r) + first_head * head_size_;
    task.keys = s_.cache_region(index_, 0) + kv_head * tokens * head_size_;
    task.values = s_.cache_region(index_, 1) + kv_head * tokens * head_size_;
    task.blocks = row.blocks + first_block;
    task.block_stride = place.block_elements;
    task.block_tokens = tokens;
    task.first = first - first_block * tokens;
    task.length = row.position + 1 - first_block * tokens;
    task.num_heads = group_;
    task.head_size = head_size_;
    task.scale = static_cast<float>(s_.config.softmax_scale());
    task.scores = s_.per_thread[static_cast<size_t>(thread)].scores.data();
    task.scores_stride = s_.scores_stride;
    task.out = s_.input.row(r) + first_head * head_size_;
    if (!weights_.sinks.empty()) task.sinks = weights_.sinks.data() + first_head;
    s_.typed().attend(task);
    if (!s_.config.attention_gate) return;
    const float* gate = s_.wide.row(r) + query_size_ + 2 * kv_size_ + first_head * head_size_;
    change_row(s_.typed(), task.out, group_ * head_size_, task.out,
               [gate](int64_t i, float value) { return value / (1.0f + std::exp(-gate[i])); });
  }

  ForwardState<T>& s_;
  const int64_t index_;
  const LayerConfig& description_;
  const PackedLayer<T>& layer_;
  const PackedAttention<T>& weights_;
  const int64_t head_size_, num_heads_, num_kv_heads_, group_, query_size_, kv_size_;
};

}  // namespace

template <class T>
void run_attention(ForwardState<T>& state, Walk& walk, int64_t layer_index) {
  AttentionPart<T>(state, layer_index).run(walk);
}
template void run_attention(ForwardState<float>&, Walk&, int64_t);
template void run_attention(ForwardState<Bf16>&, Walk&, int64_t);

}  // namespace troupe
