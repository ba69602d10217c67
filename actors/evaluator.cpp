#include "actors/evaluator.h"

#include "actors/spawn.h"

namespace troupe {
namespace {

class EvaluatorState {
 public:
  using Pointer = evaluator_actor::stateful_pointer<EvaluatorState>;
  static constexpr const char* name = "evaluator";

  explicit EvaluatorState(Pointer) {}
  evaluator_actor::behavior_type start(EvaluateFunction evaluate) {
    evaluate_ = std::move(evaluate);
    return {[this](atom::evaluate, int64_t step) -> caf::result<std::string> {
      try {
        return evaluate_(step).dump();
      } catch (const std::exception& error) {  // the evaluator itself is sound
        return caf::make_error(ec::failed, std::string("evaluator: ") + error.what());
      }
    }};
  }

 private:
  EvaluateFunction evaluate_;
};

}  // namespace

evaluator_actor spawn_evaluator(caf::actor_system& system, EvaluateFunction evaluate, bool detached) {
  return spawn_worker<evaluator_actor, EvaluatorState>(detached, system, std::move(evaluate));
}

}  // namespace troupe
