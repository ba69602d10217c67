// Critic and reference in processes of their own: what the run tells them when they join, and how a worker makes the
// actor from it. The run's whole configuration travels; the models that it names are read where the worker is.
#pragma once

#include "actors/rl_models.h"
#include "actors/worker.h"

namespace troupe {

struct JudgeSettings {
  std::string run;          // name, for people
  std::string config;       // TOML
  std::string folder;       // of the run, absolute: a critic keeps its checkpoints in it
  std::string resume_from;  // the policy's checkpoint, or ""
  std::string weights_id;   // of the model that the run means
  std::string dtype;        // that the run computes in: "auto" may mean another on this processor
  double lost_after_s = 10;
  bool operator==(const JudgeSettings&) const = default;
};
nlohmann::json to_json(const JudgeSettings& settings);
/// Throws Error naming the field that is missing or wrong.
JudgeSettings parse_judge_settings(const nlohmann::json& json);

/// What the run tells workers of both roles; `models` holds the model of each that it has.
JudgeSettings judge_settings(const RlTopology& topology, const ModelSource& model, const std::string& resume_from);

/// Opens the critic's model here and starts its actor; the trainer loads it. Throws Error where the model cannot be
/// opened or is another one.
critic_actor start_remote_critic(caf::actor_system& system, const JudgeSettings& settings, const WorkerOptions& options,
                                 std::shared_ptr<Trace> trace);
/// The same of the reference, which loads at once; `loaded` is called on its thread.
grader_actor start_remote_reference(caf::actor_system& system, const JudgeSettings& settings,
                                    const WorkerOptions& options, std::shared_ptr<Trace> trace,
                                    std::function<void()> loaded);

}  // namespace troupe
