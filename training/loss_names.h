// The kinds of a policy loss by their names in a configuration: no torch, so that configurations are read without it.
#pragma once

#include <string>

namespace troupe {

enum class KlEstimator {
  kK1,  // new - ref: unbiased, may be negative
  kK2,  // (new - ref)^2 / 2: biased, its gradient is that of the KL
  kK3,  // exp(ref - new) - (ref - new) - 1: unbiased, never negative
};
KlEstimator parse_kl_estimator(const std::string& name);  // UsageError lists the known names

enum class PolicyLossKind {
  kClip,       // max(-A r, -A clamp(r, 1-low, 1+high)); Schulman et al. 2017
  kGspo,       // the same with the sequence ratio exp(mean of log-ratios); Zheng et al. 2025
  kCispo,      // -stop_gradient(min(r, ratio_max)) A log p; MiniMax 2025
  kReinforce,  // -A log p; Williams 1992
};
PolicyLossKind parse_policy_loss(const std::string& name);  // UsageError lists the known names

/// Weights (without gradient) for tokens that the policy `old` sampled, where the ratio is taken around the proximal
/// policy: w = exp(proximal - old). Hilton et al. 2022 (decoupled), Yao et al. 2025 (truncation).
enum class Correction {
  kNone,
  kTokenTruncate,     // min(w, cap)
  kTokenBand,         // w inside [low, high], else 0
  kSequenceTruncate,  // min(exp(sum over the sequence), cap)
  kSequenceMask,      // 1 where exp(sum) lies inside [low, high], else 0
  kGeometricMask,     // 1 where exp(mean) lies inside [low, high], else 0
};
Correction parse_correction(const std::string& name);

}  // namespace troupe
