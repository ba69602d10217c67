// Reward kind "model": the score of a reward model, a sequence classification folder with one label.
#pragma once

#include "rollout/reward.h"

namespace troupe {

/// `options.settings` holds every key of the kind (rollout/reward_rules.cpp lists them). The model reads the sample's
/// own tokens, prompt and all turns, so it must have the policy's tokenizer; its score is that at the last token. The
/// folder is opened here (Error, UsageError) unless the rule runs elsewhere, weights are read at the first score and
/// shared by all rules of one path.
std::unique_ptr<RewardFunction> make_model_reward(const RewardOptions& options);

}  // namespace troupe
