// Reward kind "remote": the value that a process of the user's gives.
#pragma once

#include "rollout/reward.h"

namespace troupe {

/// `options.settings` holds every key of the kind (rollout/reward_rules.cpp lists them). Nothing is connected before
/// load().
std::unique_ptr<RewardFunction> make_remote_reward(const RewardOptions& options);

}  // namespace troupe
