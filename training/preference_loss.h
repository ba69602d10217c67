// Losses over pairs of a chosen and a rejected answer, per pair [P]; the caller takes the mean over the global pair
// count.
#pragma once

#include "models/torch.h"

namespace troupe {

/// What pairs teach; names are those of the configuration's [preference] section.
struct PreferenceOptions {
  std::string loss = "bradley-terry";  // scores of a reward model; "dpo", "ipo": log-probs of a policy
  double center = 0;                   // bradley-terry
  double beta = 0.1;                   // dpo, ipo
  double label_smoothing = 0;          // dpo
};
/// UsageError naming the key whose value or combination is impossible.
void check_preference(const PreferenceOptions& options);

/// -log sigmoid(chosen - rejected - margin) + center * (chosen + rejected)^2 over scores at each answer's last real
/// token (Bradley and Terry 1952; Ouyang et al. 2022; margin: Touvron et al. 2023; centring: Eisenstein et al. 2023).
Tensor bradley_terry_loss(const Tensor& chosen_P, const Tensor& rejected_P, const Tensor& margin_P, double center);

/// Summed log-probs of both answers under the trained policy and under the reference.
struct PreferenceLogProbs {
  Tensor chosen_P, rejected_P, reference_chosen_P, reference_rejected_P;
};

/// -(1-s) log sigmoid(beta h) - s log sigmoid(-beta h), h = policy difference - reference difference, s label smoothing
/// (Rafailov et al. 2023; Mitchell 2023).
Tensor dpo_loss(const PreferenceLogProbs& log_probs, double beta, double label_smoothing);
/// (h - 1/(2 beta))^2 (Azar et al. 2023).
Tensor ipo_loss(const PreferenceLogProbs& log_probs, double beta);

/// (policy difference - reference difference) [P], what dpo and ipo widen.
Tensor preference_difference(const PreferenceLogProbs& log_probs);

}  // namespace troupe
