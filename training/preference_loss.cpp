#include "training/preference_loss.h"

#include "base/error.h"

namespace troupe {

void check_preference(const PreferenceOptions& o) {
  const auto check = [](bool condition, const char* key, auto value, const char* wanted) {
    if (!condition) throw UsageError(concat("preference.", key, " = ", value, " ", wanted));
  };
  const bool is_reward = o.loss == "bradley-terry";
  check(is_reward || o.loss == "dpo" || o.loss == "ipo", "loss", o.loss,
        "is unknown; known: \"bradley-terry\", \"dpo\", \"ipo\"");
  check(o.center >= 0, "center", o.center, "must not be negative");
  check(o.center == 0 || is_reward, "center", o.center, "is of scores: preference.loss has none");
  check(o.beta > 0, "beta", o.beta, "must be above 0");
  check(o.label_smoothing >= 0 && o.label_smoothing < 0.5, "label_smoothing", o.label_smoothing,
        "must lie in [0, 0.5): from there on the worse answer is the better one");
  check(o.label_smoothing == 0 || o.loss == "dpo", "label_smoothing", o.label_smoothing,
        "needs preference.loss = \"dpo\"");
}

Tensor preference_difference(const PreferenceLogProbs& p) {
  return (p.chosen_P - p.rejected_P) - (p.reference_chosen_P - p.reference_rejected_P).detach();
}

Tensor bradley_terry_loss(const Tensor& chosen_P, const Tensor& rejected_P, const Tensor& margin_P, double center) {
  auto loss = -at::log_sigmoid(chosen_P - rejected_P - margin_P);
  if (center != 0) loss = loss + center * (chosen_P + rejected_P).square();
  return loss;
}

Tensor dpo_loss(const PreferenceLogProbs& log_probs, double beta, double label_smoothing) {
  const auto scaled = beta * preference_difference(log_probs);
  return -(1 - label_smoothing) * at::log_sigmoid(scaled) - label_smoothing * at::log_sigmoid(-scaled);
}

Tensor ipo_loss(const PreferenceLogProbs& log_probs, double beta) {
  return (preference_difference(log_probs) - 1 / (2 * beta)).square();
}

}  // namespace troupe
