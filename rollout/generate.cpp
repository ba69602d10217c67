#include "rollout/generate.h"

#include <chrono>
#include <unordered_map>

#include "base/error.h"

namespace troupe {
namespace {

size_t drain(Engine& engine) { return engine.drain().size(); }
size_t drain(TurnEngine& engine) { return engine.drain(); }

template <class AnyEngine>
std::vector<Trajectory> run_to_the_end(AnyEngine& engine, std::vector<GenerationRequest> requests,
                                       const GenerateLimits& limits) {
  require(engine.idle(), "generate: the engine still has requests of others");
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(limits.timeout_s);
  std::unordered_map<uint64_t, size_t> order;
  for (const auto& request : requests) {
    require(order.emplace(request.sample_id, order.size()).second, "generate: sample id ", request.sample_id,
            " occurs twice");
  }
  std::vector<std::optional<Trajectory>> slots(requests.size());
  try {
    for (auto& request : requests) engine.add(std::move(request));
    while (!engine.idle()) {
      if (limits.stop_requested && limits.stop_requested()) break;
      for (auto& trajectory : engine.step()) {
        if (limits.on_finished) limits.on_finished(trajectory);
        const size_t index = order.at(trajectory.sample_id);
        slots[index] = std::move(trajectory);
      }
      if (std::chrono::steady_clock::now() > deadline && !engine.idle()) {
        fail("generate: ", drain(engine), " of ", slots.size(), " samples are unfinished after ", limits.timeout_s,
             " s");
      }
    }
  } catch (...) {
    drain(engine);
    throw;
  }
  drain(engine);
  std::vector<Trajectory> trajectories;
  for (auto& slot : slots) {
    if (slot) trajectories.push_back(std::move(*slot));
  }
  return trajectories;
}

}  // namespace

std::vector<Trajectory> generate_all(Engine& engine, std::vector<GenerationRequest> requests,
                                     const GenerateLimits& limits) {
  return run_to_the_end(engine, std::move(requests), limits);
}

std::vector<Trajectory> generate_all(TurnEngine& engine, std::vector<GenerationRequest> requests,
                                     const GenerateLimits& limits) {
  return run_to_the_end(engine, std::move(requests), limits);
}

}  // namespace troupe
