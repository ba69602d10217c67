#include "training/preference_loss.h"

namespace troupe {
namespace {

Tensor difference(const PreferenceLogProbs& p) {
  return (p.chosen_P - p.rejected_P) - (p.reference_chosen_P - p.reference_rejected_P).detach();
}

}  // namespace

Tensor bradley_terry_loss(const Tensor& chosen_P, const Tensor& rejected_P, const Tensor& margin_P, double center) {
  auto loss = -at::log_sigmoid(chosen_P - rejected_P - margin_P);
  if (center != 0) loss = loss + center * (chosen_P + rejected_P).square();
  return loss;
}

Tensor dpo_loss(const PreferenceLogProbs& log_probs, double beta, double label_smoothing) {
  const auto scaled = beta * difference(log_probs);
  return -(1 - label_smoothing) * at::log_sigmoid(scaled) - label_smoothing * at::log_sigmoid(-scaled);
}

Tensor ipo_loss(const PreferenceLogProbs& log_probs, double beta) {
  return (difference(log_probs) - 1 / (2 * beta)).square();
}

}  // namespace troupe
