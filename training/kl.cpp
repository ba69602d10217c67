#include "training/kl.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace troupe {

Tensor kl_estimate(KlEstimator estimator, const Tensor& log_probs_N, const Tensor& reference_log_probs_N) {
  const auto difference = log_probs_N - reference_log_probs_N;
  switch (estimator) {
    case KlEstimator::kK2:
      return difference.square() / 2;
    case KlEstimator::kK3: {
      // Bounded like the policy's ratio, so that one odd token cannot overflow.
      const auto reverse = -difference;
      return reverse.clamp(-20, 20).expm1() - reverse;
    }
    case KlEstimator::kK1:
      break;
  }
  return difference;
}

KlCoefficient::KlCoefficient(double initial, double target, double horizon)
    : value_(initial), target_(target), horizon_(horizon) {
  if (target > 0 && horizon <= 0) throw UsageError(concat("algorithm.kl_horizon = ", horizon, " must be above 0"));
}

void KlCoefficient::update(double kl, double num_samples) {
  if (target_ <= 0 || !std::isfinite(kl)) return;
  value_ *= 1 + std::clamp(kl / target_ - 1, -0.2, 0.2) * num_samples / horizon_;
}

}  // namespace troupe
