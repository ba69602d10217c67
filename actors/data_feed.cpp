#include "actors/data_feed.h"

#include "actors/spawn.h"
#include "actors/train_batch.h"

namespace troupe {
namespace {

class DataState {
 public:
  using Pointer = data_actor::stateful_pointer<DataState>;
  static constexpr const char* name = "data";

  explicit DataState(Pointer) {}

  data_actor::behavior_type start(DataSetup setup) {
    setup_ = std::move(setup);
    step_ = saved_step_ = setup_.first_step;
    cursor_ = setup_.feed.cursor();
    return {
        [this](atom::trained, const StepReport& report) {
          step_ = report.step;
          cursor_ = setup_.feed.cursor();
          setup_.recorder->step(step_, nlohmann::json::parse(report.metrics_json), nlohmann::json(),
                                nlohmann::json::array());
          const bool last = step_ >= setup_.num_steps;
          const bool save =
              (setup_.save_interval > 0 && step_ % setup_.save_interval == 0) || (last && setup_.save_at_end);
          const bool validate = setup_.validate && !interrupted_ &&
                                (last || (setup_.validation_interval > 0 && step_ % setup_.validation_interval == 0));
          return decide(save, validate);
        },
        [this](atom::decide) {
          const bool first = !started_;
          started_ = true;
          return decide(false, first && !interrupted_ && setup_.validate && step_ == 0);
        },
        [this](atom::validate, const std::string& metrics) {
          setup_.recorder->evaluation(step_, nlohmann::json::parse(metrics));
          return decide(false, false);
        },
        [this](atom::interrupt) { interrupted_ = true; },
        [this](atom::status) {
          return nlohmann::json{{"text", concat("data: ", step_, " of ", setup_.num_steps, " steps trained")},
                                {"step", step_},
                                {"steps", setup_.num_steps}}
              .dump();
        },
        [this](atom::batch, int64_t step) { return batch(step); },
    };
  }

 private:
  /// An interrupted run saves whatever is newer than its newest checkpoint, wherever in the step the interrupt came.
  StepDecision decide(bool save, bool validate) {
    save |= interrupted_ && setup_.save_at_end && step_ > saved_step_;
    StepDecision decision;
    decision.interrupted = interrupted_;
    decision.stop = interrupted_ || step_ >= setup_.num_steps;
    decision.train = !decision.stop;
    decision.validate = validate;
    decision.save = save;
    if (save) {
      saved_step_ = step_;
      setup_.recorder->sync();
      decision.state_json =
          nlohmann::json{{"format", 1}, {"step", step_}, {"cursor", cursor_}, {"time_s", setup_.recorder->time_s()}}
              .dump();
    }
    return decision;
  }

  /// A source that fails is told to the trainer, which saves what it has; this actor goes on to answer for that.
  caf::result<LocalBatch> batch(int64_t step) {
    try {
      return make_batch(step);
    } catch (const std::exception& error) {
      return caf::make_error(ec::failed, concat("data, step ", step, ": ", error.what()));
    }
  }

  LocalBatch make_batch(int64_t step) {
    auto made = std::make_shared<TrainBatch>();
    made->step = step;
    setup_.feed.fill(*made);
    return {std::move(made)};
  }

  DataSetup setup_;
  int64_t step_ = 0, saved_step_ = 0;
  TextCursor cursor_;  // after the newest trained step: rows that were read but not trained are read again
  bool started_ = false, interrupted_ = false;
};

}  // namespace

data_actor spawn_data(caf::actor_system& system, DataSetup setup) {
  return spawn_state<data_actor, DataState>(system, std::move(setup));
}

}  // namespace troupe
