// Policy-gradient losses per token: PPO clip with dual clip, GSPO, CISPO, REINFORCE, and the corrections for data that
// an older or a slightly different policy made. Variants are parameters of shared parts; aggregation is
// training/aggregation.h.
//
// Shape legend: N trainable tokens of a micro-batch, flat; C sequences in it. A sequence lies in one micro-batch whole.
#pragma once

#include "models/torch.h"
#include "training/loss_names.h"

namespace troupe {

struct PolicyLossOptions {
  PolicyLossKind kind = PolicyLossKind::kClip;
  double clip_low = 0.2, clip_high = 0.2;
  double dual_clip = 0;  // c > 1: for A < 0 the loss is at most -A c (Ye et al. 2020); 0: off
  double ratio_max = 1.2;
  Correction correction = Correction::kNone;
  double correction_low = 0.5, correction_high = 2, correction_cap = 2;
};

struct PolicyLossInput {
  Tensor log_probs_N;           // of the policy that is trained; carries the gradient
  Tensor anchor_log_probs_N;    // the ratio's denominator: the sampler's, or the proximal (recomputed) ones
  Tensor behavior_log_probs_N;  // the sampler's; read where there is a correction
  Tensor advantages_N;
  Tensor sequences_N;  // int64 in [0, C): which sequence a token belongs to
  int64_t num_sequences = 0;
};

struct PolicyLoss {
  Tensor token_loss_N;  // differentiable
  Tensor ratio_N;       // without gradient; of the token, or of its sequence (GSPO)
  Tensor clipped_N;     // bool: -A clamp(r) > -A r, before dual clip
  Tensor correction_N;  // weights without gradient; undefined without correction
};

/// Throws Error where a correction has no behaviour log-probs. Log-ratios are bounded to +-20 before exp, so that one
/// odd token gives a large finite loss and no overflow.
PolicyLoss policy_loss(const PolicyLossInput& input, const PolicyLossOptions& options);

/// The correction's weights [N] alone.
Tensor correction_weights(const PolicyLossInput& input, const PolicyLossOptions& options);

}  // namespace troupe
