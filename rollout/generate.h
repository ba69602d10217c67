// Runs an engine until its requests are done: for the command line, `troupe verify` and evaluation. The rollout actor
// drives the engine step by step instead.
#pragma once

#include "rollout/engine.h"
#include "rollout/turns.h"

namespace troupe {

struct GenerateLimits {
  double timeout_s = 3600;                             // Error naming what is unfinished when it has passed
  std::function<bool()> stop_requested;                // asked between steps; true ends with what is finished
  std::function<void(const Trajectory&)> on_finished;  // progress
};

/// Generates for all requests and returns the trajectories in the order of the requests (sample ids must differ). Where
/// `stop_requested` ended it early the unfinished ones are absent. The engine must be idle before and is idle
/// afterwards, whatever happens.
std::vector<Trajectory> generate_all(Engine& engine, std::vector<GenerationRequest> requests,
                                     const GenerateLimits& limits = {});
std::vector<Trajectory> generate_all(TurnEngine& engine, std::vector<GenerationRequest> requests,
                                     const GenerateLimits& limits = {});

}  // namespace troupe
