#include "training/policy_loss.h"

#include "base/error.h"

namespace troupe {
namespace {

constexpr double kLogRatioBound = 20;

Tensor bounded_exp(const Tensor& log_ratio) { return log_ratio.clamp(-kLogRatioBound, kLogRatioBound).exp(); }

Tensor sequence_sum(const Tensor& x_N, const PolicyLossInput& input) {
  return x_N.new_zeros({input.num_sequences}).index_add(0, input.sequences_N, x_N);
}

Tensor sequence_mean(const Tensor& x_N, const PolicyLossInput& input) {
  return sequence_sum(x_N, input) / sequence_sum(at::ones_like(x_N), input).clamp_min(1);
}

Tensor inside(const Tensor& x, double low, double high) { return x.ge(low).logical_and(x.le(high)); }

}  // namespace

Tensor correction_weights(const PolicyLossInput& input, const PolicyLossOptions& options) {
  require(input.behavior_log_probs_N.defined(), "a correction needs the sampler's log-probs");
  const auto log_weight = (input.anchor_log_probs_N - input.behavior_log_probs_N).detach();
  const double low = options.correction_low, high = options.correction_high, cap = options.correction_cap;
  const auto spread = [&](const Tensor& per_sequence) { return per_sequence.index_select(0, input.sequences_N); };
  switch (options.correction) {
    case Correction::kTokenTruncate:
      return bounded_exp(log_weight).clamp_max(cap);
    case Correction::kTokenBand: {
      const auto weight = bounded_exp(log_weight);
      return weight * inside(weight, low, high);
    }
    case Correction::kSequenceTruncate:
      return spread(bounded_exp(sequence_sum(log_weight, input)).clamp_max(cap));
    case Correction::kSequenceMask:
      return spread(inside(bounded_exp(sequence_sum(log_weight, input)), low, high).to(log_weight.scalar_type()));
    case Correction::kGeometricMask:
      return spread(inside(bounded_exp(sequence_mean(log_weight, input)), low, high).to(log_weight.scalar_type()));
    case Correction::kNone:
      break;
  }
  return at::ones_like(log_weight);
}

PolicyLoss policy_loss(const PolicyLossInput& input, const PolicyLossOptions& options) {
  const auto& log_probs = input.log_probs_N;
  const auto& advantages = input.advantages_N;
  PolicyLoss result;
  auto log_ratio = log_probs - input.anchor_log_probs_N.detach();
  if (options.kind == PolicyLossKind::kGspo)
    log_ratio = sequence_mean(log_ratio, input).index_select(0, input.sequences_N);
  const auto ratio = bounded_exp(log_ratio);
  result.ratio_N = ratio.detach();
  const auto clamped = [&](const Tensor& r) { return r.clamp(1 - options.clip_low, 1 + options.clip_high); };
  result.clipped_N = (-advantages * clamped(result.ratio_N)).gt(-advantages * result.ratio_N);

  switch (options.kind) {
    case PolicyLossKind::kClip:
    case PolicyLossKind::kGspo: {
      auto loss = at::maximum(-advantages * ratio, -advantages * clamped(ratio));
      if (options.dual_clip > 0) {
        const auto bounded = at::minimum(loss, -advantages * options.dual_clip);
        loss = at::where(advantages.lt(0), bounded, loss);
      }
      result.token_loss_N = loss;
      break;
    }
    case PolicyLossKind::kCispo:
      result.token_loss_N = -result.ratio_N.clamp_max(options.ratio_max) * advantages * log_probs;
      result.clipped_N = result.ratio_N.gt(options.ratio_max);
      break;
    case PolicyLossKind::kReinforce:
      result.token_loss_N = -advantages * log_probs;
      result.clipped_N = at::zeros_like(result.clipped_N);
      break;
  }
  if (options.correction != Correction::kNone) {
    result.correction_N = correction_weights(input, options);
    result.token_loss_N = result.token_loss_N * result.correction_N;
  }
  return result;
}

}  // namespace troupe
