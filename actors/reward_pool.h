// The reward pool: plays the reward actor where the rules run in other processes, and the reference where that is in
// others: its graders add log-probs. Graders come and go; a sample waits
// for the next one, and the answer of one that was given up is not heard any more.
//
//   rollout ──score──> pool: waiting ──score──> grader ──graded──> pool ──store──> buffer ──answer──> rollout
//                        ▲                        │
//                        └── it fell, or was late ┘
#pragma once

#include "actors/interfaces.h"

namespace troupe {

struct RewardPoolSetup {
  std::string role = "reward";                    // or "reference": whose work it is, and of which role its workers are
  std::chrono::milliseconds limit{20'000};        // of one grader's answer
  std::chrono::milliseconds store_limit{20'000};  // of whoever takes the graded samples
  std::chrono::milliseconds wait_for_graders{600'000};  // of samples, without any, before the run stops
  int max_asked = 8;                                    // questions that a grader has at a time
  int max_attempts = 4;                                 // graders that may fall under one sample
};

/// A reward actor that asks the graders that are introduced to it. Where samples wait and nobody grades for
/// `wait_for_graders`, it tells the supervisor so, and that the run is to wind down.
reward_pool_actor spawn_reward_pool(caf::actor_system& system, sample_store_actor next, supervisor_actor supervisor,
                                    RewardPoolSetup setup);

}  // namespace troupe
