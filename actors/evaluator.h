// The evaluator actor: held-out scores of the newest weights, on its own thread.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>

#include "actors/interfaces.h"

namespace troupe {

using EvaluateFunction = std::function<nlohmann::json(int64_t step)>;
evaluator_actor spawn_evaluator(caf::actor_system& system, EvaluateFunction evaluate, bool detached);

}  // namespace troupe
