// What a layer keeps from its forward for its backward, block by block, as the blocks of models/blocks save it.
#include "models/blocks/latent_attention.h"
#include "parallel/step_estimate.h"

namespace troupe {
namespace {

class LayerActivations {
 public:
  LayerActivations(const ParallelPlan& plan, int64_t layer, int64_t num_tokens, int64_t element_bytes)
      : local_(plan.local_config()),
        layer_(local_.layer(layer)),
        num_tokens_(num_tokens),
        element_bytes_(element_bytes),
        wide_bytes_(std::max<int64_t>(4, element_bytes)),
        splits_tokens_(plan.degrees().tensor > 1 && plan.options().sequence_parallel),
        sends_tokens_(plan.degrees().expert > 1),
        num_rows_(splits_tokens_ ? num_tokens / plan.degrees().tensor : num_tokens) {}

  int64_t bytes() {
    keep(2 * num_rows_ * local_.hidden_size);  // what both norms read
    keep_wide(2 * num_rows_);                  // and their scales
    keep(num_tokens_ * local_.hidden_size);    // the first norm's output
    if (layer_.mixer == Mixer::kLatentAttention) {
      add_latent_attention();
    } else {
      add_attention();
    }
    if (!layer_.has_experts) {
      add_dense(local_.intermediate_size, num_tokens_);
    } else {
      add_experts();
    }
    return bytes_;
  }

 private:
  void keep(int64_t numel) { bytes_ += numel * element_bytes_; }
  void keep_wide(int64_t numel) { bytes_ += numel * wide_bytes_; }
  void keep_indices(int64_t numel) { bytes_ += numel * 8; }

  void add_attention() {
    const int64_t heads = local_.num_attention_heads * local_.head_dim;
    const int64_t projected = heads + 2 * local_.num_key_value_heads * local_.head_dim;
    keep(num_tokens_ * (projected * (local_.query_key_norm ? 2 : 1) + heads));
    keep_wide(num_tokens_ * local_.num_attention_heads);
  }

  void add_latent_attention() {
    const auto& latent = local_.latent;
    const int64_t heads = local_.num_attention_heads;
    const int64_t size = blocks::latent_head_dim(latent);
    if (latent.query_rank > 0) {
      keep(num_tokens_ * 2 * latent.query_rank);  // before and behind the norm
      keep_wide(num_tokens_);
    }
    keep(num_tokens_ * 2 * latent.key_value_rank);
    keep_wide(num_tokens_);
    keep(num_tokens_ * heads * 4 * size);  // queries, keys, values and what they give, padded to one size
    if (size != latent.value_dim) keep(num_tokens_ * heads * latent.value_dim);
    keep_wide(num_tokens_ * heads);
  }

  void add_dense(int64_t inner, int64_t num_tokens) { keep(num_tokens * (local_.hidden_size + 2 * inner)); }

  /// Routing that gives every expert as many tokens.
  void add_experts() {
    const auto& moe = local_.moe;
    const int64_t width = local_.hidden_size, num_pairs = num_rows_ * moe.num_experts_per_token;
    keep(num_rows_ * width);  // the norm's output
    // The router computes in fp32: its input and weight again, scores, choices, their scores before and behind the sum.
    if (element_bytes_ < 4) keep_wide(num_rows_ * width + moe.num_experts * width);
    if (moe.score != RouterScore::kSoftmaxOfChosen && moe.score != RouterScore::kSigmoidInput)
      keep_wide(num_rows_ * moe.num_experts);
    keep_indices(num_pairs);
    keep_wide(num_pairs * (moe.normalise ? 2 : 1) + (moe.normalise ? num_rows_ : 0));
    keep(num_pairs * 2 * moe.intermediate_size);
    if (sends_tokens_) {
      keep(num_pairs * width);  // rows that came, their weights, and which way back
      keep_wide(num_pairs);
      keep_indices(3 * num_pairs);
    }
    if (moe.shared_intermediate_size == 0) return;
    keep(num_tokens_ * 2 * moe.shared_intermediate_size);
    if (splits_tokens_) keep(num_tokens_ * width);  // the norm's output of all tensor ranks
    if (moe.shared_gate) keep(num_rows_ * (width + 1));
  }

  const ModelConfig& local_;
  const LayerConfig& layer_;
  const int64_t num_tokens_, element_bytes_, wide_bytes_;
  const bool splits_tokens_, sends_tokens_;
  const int64_t num_rows_;  // that this rank keeps between layers
  int64_t bytes_ = 0;
};

}  // namespace

int64_t layer_activation_bytes(const ParallelPlan& plan, int64_t layer, int64_t num_tokens, int64_t element_bytes) {
  return LayerActivations(plan, layer, num_tokens, element_bytes).bytes();
}

}  // namespace troupe
