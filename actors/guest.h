// The guest actor: a worker's side of joining. It drives the same rollout actor that a run's own workers are, with the
// run's director and reward actor at the other end of the wire and a weight board of its own.
//
//   joining ──welcome──> at work ──"the run is over"──> ended (0)
//      ▲ │ └──refused, or no run for retry_s──────────> ended (1, why)
//      │ └──────────────────────────────┐
//      └── the run is lost, or the rollout actor fell (restarts are counted) ◄── at work
//   anywhere ──Ctrl-C──> [leave, told to the gate] ──> ended (130)
#pragma once

#include "actors/interfaces.h"
#include "actors/restart_policy.h"
#include "actors/rollout.h"
#include "actors/worker.h"

namespace troupe {

struct GuestSetup {
  WorkerOptions options;
  std::string model;  // fingerprint that the run's model must have, or ""
  std::string name;   // "host:process"
  RestartOptions restarts;
  RolloutWorkFactory make_work = nullptr;  // in the place of the engine, for tests
};

guest_actor spawn_guest(caf::actor_system& system, GuestSetup setup);

}  // namespace troupe
