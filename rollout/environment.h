// Environments: who answers the policy's turns. A turn is what the policy says until it ends its turn; the answer is
// messages that stand before its next one, a reward, or the end.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "rollout/remote.h"

namespace troupe {

/// environment.*
struct EnvironmentOptions {
  std::string kind;       // "calculator", "remote", or one that was registered; empty: one turn, no environment
  int max_turns = 4;      // of the policy; a sample that has no end by then counts as cut off
  double timeout_s = 10;  // of one answer
  RemoteOptions remote;   // of kind "remote"
  bool operator==(const EnvironmentOptions&) const = default;
};
nlohmann::json to_json(const EnvironmentOptions& options);
/// Throws nlohmann::json::exception where a field is missing or wrong.
EnvironmentOptions parse_environment_options(const nlohmann::json& json);

/// One turn of an episode; (sample, attempt) names the episode.
struct Turn {
  uint64_t sample_id = 0;
  uint32_t attempt = 0;
  int number = 1;    // of the policy's turns
  std::string text;  // ends before the token or string that ended the turn
  nlohmann::json metadata;
};

struct TurnAnswer {
  std::vector<std::pair<std::string, std::string>> messages;  // (role, content); not used where the episode is done
  double reward = 0;  // those of a sample's turns are added up, for [[reward]] kind = "environment"
  bool done = false;
};

class Environment {
 public:
  virtual ~Environment() = default;
  /// What takes long: once, before the first turn.
  virtual void load() const {}
  /// Called from several threads, for one turn of an episode at a time; turn 1 begins an episode. Throws to say why
  /// there is no answer: the attempt is lost, and the sample is made again.
  virtual TurnAnswer step(const Turn& turn) const = 0;
  /// As RewardFunction::longest_s.
  virtual double longest_s() const { return 0; }
};

/// Null for an empty kind. Unknown kinds list the known ones, wrong settings name the key (UsageError).
std::shared_ptr<const Environment> make_environment(const EnvironmentOptions& options);

/// Adds a kind of one's own, before configurations are read.
using EnvironmentFactory = std::unique_ptr<Environment> (*)(const EnvironmentOptions& options);
void register_environment_kind(const std::string& kind, EnvironmentFactory factory);

}  // namespace troupe
