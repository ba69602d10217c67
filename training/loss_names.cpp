#include "training/loss_names.h"

#include "training/choices.h"

namespace troupe {

KlEstimator parse_kl_estimator(const std::string& name) {
  return choose<KlEstimator>("algorithm.kl_estimator", name,
                             {{"k1", KlEstimator::kK1}, {"k2", KlEstimator::kK2}, {"k3", KlEstimator::kK3}});
}

PolicyLossKind parse_policy_loss(const std::string& name) {
  return choose<PolicyLossKind>("algorithm.policy_loss", name,
                                {{"clip", PolicyLossKind::kClip},
                                 {"gspo", PolicyLossKind::kGspo},
                                 {"cispo", PolicyLossKind::kCispo},
                                 {"reinforce", PolicyLossKind::kReinforce}});
}

Correction parse_correction(const std::string& name) {
  return choose<Correction>("algorithm.correction", name,
                            {{"none", Correction::kNone},
                             {"token-truncate", Correction::kTokenTruncate},
                             {"token-band", Correction::kTokenBand},
                             {"sequence-truncate", Correction::kSequenceTruncate},
                             {"sequence-mask", Correction::kSequenceMask},
                             {"geometric-mask", Correction::kGeometricMask}});
}

}  // namespace troupe
