// What Troupe's own rewards are and which keys each takes: the one place where they are listed, for checks and for
// docs/configuration.md.
#pragma once

#include "rollout/reward.h"

namespace troupe {

/// A key of a kind's own in its [[reward]] table; the default's type is the key's.
struct RewardKey {
  std::string name;
  nlohmann::json default_value;
  std::string help;
};

struct RewardKind {
  std::string name, help;
  std::vector<RewardKey> keys;
  RewardFactory make;  // is given every key
};

/// By name.
const std::vector<RewardKind>& built_in_reward_kinds();

}  // namespace troupe
