// Multi-head latent attention (DeepSeek-AI 2024, "DeepSeek-V2"): keys and values of all heads come from one low-rank
// vector a token, beside a rotated key that all heads share. Here, in training, they are expanded; the generation
// engine keeps the compressed form.
#pragma once

#include "models/blocks/attention.h"
#include "models/layer_config.h"

namespace troupe::blocks {

/// q: queries at once, or from `q_down` and `q_norm` through `q`. Biases may be undefined.
struct LatentWeights {
  Tensor q_down, q_down_bias, q_norm, q;
  Tensor kv_down, kv_down_bias, kv_norm, kv;
};

/// Size of a head in the attention itself: queries and keys are longer than values, or the other way round.
int64_t latent_head_dim(const LatentConfig& config);

/// x_TD (already normalised) -> [T, H value_dim]. The context's heads are all H, of latent_head_dim; its rope table is
/// of `rotary_dim`, and it has no norms.
Tensor latent_attention(const Tensor& x_TD, const LatentWeights& weights, const LatentConfig& config,
                        const AttentionContextPointer& context);

}  // namespace troupe::blocks
