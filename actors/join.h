// What a worker of another process and the run say to each other when it joins (protocol "Joining worker"): the words,
// the rules by which it is let in, and what it needs to generate. Plain logic: knows no actor's thread and no socket.
//
//   worker ──hello {protocol, build, token, model, heartbeat}──> gate
//          <──welcome {seat, settings, tokenizer's files, ticket and port of the weights, director, reward}──
//          <──or a welcome that holds nothing but the reason why not──
#pragma once

#include <caf/meta/type_name.hpp>
#include <caf/actor_control_block.hpp>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "rollout/reward.h"
#include "rollout/turns.h"

namespace troupe {

inline constexpr int32_t kJoinProtocol = 2;

struct Hello {
  int32_t protocol = 0;
  std::string build;  // TROUPE_VERSION
  std::string token;
  std::string name;   // host and process, for people
  std::string model;  // fingerprint of the model that the worker insists on, or ""
  double heartbeat_s = 0;
  int32_t threads = 0;
  std::string role = "rollout";  // of known_worker_roles()
  bool operator==(const Hello&) const = default;
};

struct Welcome {
  std::string refusal;  // why not; then nothing else is filled in
  int32_t seat = -1;
  std::string settings_json;  // WorkerSettings, GraderSettings, JudgeSettings
  std::vector<std::string> file_names, file_contents;
  std::string ticket;  // of the weights
  uint16_t weights_port = 0;
  caf::strong_actor_ptr director;
  caf::strong_actor_ptr reward;  // of other roles: who asks them (reward pool, reference pool, trainer)
  bool operator==(const Welcome&) const = default;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, Hello& x) {
  return f(caf::meta::type_name("troupe::Hello"), x.protocol, x.build, x.token, x.name, x.model, x.heartbeat_s,
           x.threads, x.role);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, Welcome& x) {
  return f(caf::meta::type_name("troupe::Welcome"), x.refusal, x.seat, x.settings_json, x.file_names, x.file_contents,
           x.ticket, x.weights_port, x.director, x.reward);
}

/// What the run holds a worker to.
struct JoinRules {
  std::string build;
  std::string token;  // "": none is asked for
  std::string model;  // fingerprint
  double lost_after_s = 10;
  std::set<std::string> roles_elsewhere = {};  // that the run has placed in workers: "reward", "reference", "critic"
};
/// Why the worker is not let in, or "". Tokens are compared in a time that does not depend on where they differ.
std::string refusal(const Hello& hello, const JoinRules& rules);

/// What a worker generates by: the run's own settings, whatever the worker's machine.
struct WorkerSettings {
  std::string run;  // name, for people
  nlohmann::json model_config;
  EngineOptions engine;  // num_threads is the worker's own
  SamplingOptions sampling;
  int64_t baseline_index = -1;
  int32_t credit = 1;
  double score_limit_s = 20, lost_after_s = 10;
  std::string dtype = "float32";  // of the weights that travel, and of compute
  TurnSetup turns;
};
nlohmann::json to_json(const WorkerSettings& settings);
/// Throws Error naming the field that is missing or wrong.
WorkerSettings parse_worker_settings(const nlohmann::json& json);

/// What a worker of role "reward" grades by: the run's own rules. Files that they name are read where the worker is.
struct GraderSettings {
  std::string run;
  std::vector<RewardOptions> rewards;
  double lost_after_s = 10;
};
nlohmann::json to_json(const GraderSettings& settings);
/// Throws Error naming the field that is missing or wrong.
GraderSettings parse_grader_settings(const nlohmann::json& json);

}  // namespace troupe
