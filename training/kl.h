// Divergence from the reference policy: sampled estimators per token (Schulman 2020, "Approximating KL divergence") and
// the coefficient that may adapt to a target.
#pragma once

#include "models/torch.h"
#include "training/loss_names.h"

namespace troupe {

/// Estimate per token [N], differentiated as sampled (no term for the sampling distribution).
Tensor kl_estimate(KlEstimator estimator, const Tensor& log_probs_N, const Tensor& reference_log_probs_N);

/// Coefficient of the KL term: fixed, or steered towards a target (Ziegler et al. 2019, section 2.2): each update
/// multiplies it by 1 + clamp(kl/target - 1, -0.2, 0.2) * num_samples / horizon.
class KlCoefficient {
 public:
  KlCoefficient(double initial, double target, double horizon);
  double value() const { return value_; }
  /// `kl` is the mean over the tokens of a step that had `num_samples` samples; nothing changes without a target.
  void update(double kl, double num_samples);
  /// For a resume.
  void set(double value) { value_ = value; }

 private:
  double value_, target_, horizon_;
};

}  // namespace troupe
