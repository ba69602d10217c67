// The reward actor: scores a sample and hands it to the buffer, whose answer goes back to the asker. The grader is its
// half that may be in another process (reward_pool.h): it only scores.
#pragma once

#include <functional>

#include "actors/interfaces.h"
#include "actors/trace.h"
#include "base/trajectory.h"

namespace troupe {

/// Fills rewards and total_reward; made on the actor's thread.
using ScoreFunction = std::function<void(Trajectory&)>;
using ScoreFactory = std::function<ScoreFunction()>;

struct RewardSetup {
  ScoreFactory make_score;
  std::shared_ptr<Trace> trace;
  bool detached = true;
  /// Samples scored at a time, each by an actor of its own behind the one that is asked: for functions that wait for
  /// other processes.
  int num_scorers = 1;
  std::string role = "reward";  // in the trace; spans of one must not overlap
  /// Of a grader: called on its thread (the last one's) once the rules are loaded; may be empty.
  std::function<void()> on_ready = nullptr;
};

/// `next` takes the scored samples.
reward_actor spawn_reward(caf::actor_system& system, sample_store_actor next, RewardSetup setup);
/// Where it has several scorers, it ends only once all of them have: one that hangs keeps it.
grader_actor spawn_grader(caf::actor_system& system, RewardSetup setup);

}  // namespace troupe
