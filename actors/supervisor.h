// The supervisor actor: starts every role, watches them, restarts rollout, reward and reference with a growing pause,
// and ends the run with the cause when anybody else falls. A new reference takes a new reward with it.
//
//   running ──trainer finished──> ended (0 or 130)
//      └── director, buffer or trainer fell; a role out of restarts and nobody left to do its work ──> ended (1, cause)
#pragma once

#include <functional>
#include <optional>

#include "actors/interfaces.h"
#include "actors/restart_policy.h"
#include "actors/run_recorder.h"

namespace troupe {

/// How each role is started. For pre-training only `start_control` (the data actor) and `start_trainer` are set.
struct CastList {
  int num_rollouts = 0;
  bool needs_every_rollout = false;  // a worker's work cannot be done by another one (deterministic runs)
  RestartOptions restarts;
  std::shared_ptr<ObserverGate> observer;
  std::function<buffer_actor(caf::actor_system&)> start_buffer;
  std::function<evaluator_actor(caf::actor_system&)> start_evaluator;
  std::function<director_actor(caf::actor_system&, buffer_actor, evaluator_actor, supervisor_actor)> start_director;
  /// Between reward and buffer; empty where the algorithm measures no KL.
  std::function<sample_store_actor(caf::actor_system&, sample_store_actor buffer, supervisor_actor)> start_reference;
  std::function<reward_actor(caf::actor_system&, sample_store_actor next, supervisor_actor)> start_reward;
  std::function<rollout_actor(caf::actor_system&, int worker, director_actor, reward_actor)> start_rollout;
  /// Where workers of other processes may join; throws Error where it cannot listen.
  std::function<gate_actor(caf::actor_system&, director_actor, reward_actor)> start_gate;
  std::function<int()> num_joined;  // of them, now
  bool reward_is_pool = false;      // the reward actor is a reward_pool_actor
  /// Whoever tells the world how the run stands; may be empty. Nobody misses it.
  std::function<reporter_actor(caf::actor_system&, run_control_actor)> start_reporter;
  /// Pre-training: one actor is batch source and run control.
  std::function<std::pair<batch_source_actor, run_control_actor>(caf::actor_system&)> start_data;
  std::function<trainer_actor(caf::actor_system&, batch_source_actor, run_control_actor, supervisor_actor)>
      start_trainer;
};

supervisor_actor spawn_supervisor(caf::actor_system& system, CastList cast);

}  // namespace troupe
