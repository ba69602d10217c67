// The rollout actor: one generation engine, driven one step a message, so that work, weights and exits get in between.
//
//   work ──> engine ──step──> finished ──generated──> director
//                                └──score (asked, repeated on failure)──> reward ──> buffer
//
// A finished sample is kept until the buffer has it. Blocking: detached. Supervised and restarted; bounded by its
// credit.
#pragma once

#include <functional>
#include <memory>

#include "actors/interfaces.h"
#include "actors/trace.h"
#include "actors/weight_board.h"
#include "rollout/engine.h"

namespace troupe {

/// What a rollout worker drives: the generation engine, or a double in tests.
class RolloutWork {
 public:
  virtual ~RolloutWork() = default;
  virtual void set_weights(WeightBoard::Pointer weights) = 0;
  virtual int64_t version() const = 0;  // -1 without weights
  virtual void add(const WorkOrder& order, size_t index) = 0;
  virtual std::vector<Trajectory> step() = 0;
  virtual bool idle() const = 0;
  virtual EngineMetrics metrics() const = 0;
  /// Samples under way with their tokens so far; those of whom nothing is known begin anew in a resumed run.
  virtual std::vector<Trajectory> unfinished() const { return {}; }
};
using RolloutWorkFactory = std::function<std::unique_ptr<RolloutWork>(int worker)>;

struct RolloutSetup {
  RolloutWorkFactory make_work;  // called on the actor's thread
  std::shared_ptr<WeightBoard> board;
  std::shared_ptr<Trace> trace;
  int credit = 1;  // samples that may be here at a time: sequence slots and a little queue
  std::chrono::milliseconds score_limit{20'000};
  /// Questions at a time, so that the time limit counts scoring and not a long queue (invariant 12).
  int max_scores_asked = 8;
  int max_score_attempts = 4;
  bool detached = true;
};

rollout_actor spawn_rollout(caf::actor_system& system, int worker, director_actor director, reward_actor reward,
                            RolloutSetup setup);

}  // namespace troupe
