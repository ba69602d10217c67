// The data actor, run control of runs without generation, asked directly.
#include "actors/data_feed.h"

#include "tests/actors/virtual_run.h"

namespace troupe {
namespace {

using namespace actor_tests;

struct DataRun {
  DataRun() {
    DataSetup setup;
    setup.feed = {[](TrainBatch&) {}, [] { return TextCursor{}; }};
    setup.num_steps = 10;
    setup.save_interval = 4;
    setup.save_at_end = setup.validate = true;
    setup.validation_interval = 2;
    setup.recorder =
        std::make_shared<RunRecorder>(std::make_shared<RunFolder>(folder.path, -1), std::make_shared<Trace>(false),
                                      std::make_shared<ObserverGate>(nullptr), 1);
    data = stage.add(spawn_data(stage.system, std::move(setup)));
  }
  template <class... Ts>
  StepDecision ask(const Ts&... message) {
    std::optional<StepDecision> decision;
    stage.add(stage.system.spawn([&, this](caf::event_based_actor* self) {
      self->request(data, caf::infinite, message...)
          .then([&](const StepDecision& answer) { decision = answer; },
                [](const caf::error& error) { FAIL(caf::to_string(error)); });
    }));
    stage.run_jobs();
    REQUIRE(decision.has_value());
    return *decision;
  }
  StepDecision train(int64_t step) { return ask(atom::trained_v, StepReport{step, step, {}, "{}"}); }
  StepDecision validated() { return ask(atom::validate_v, std::string("{}")); }

  TemporaryFolder folder{"data_feed"};
  VirtualStage stage;
  data_actor data;
};

}  // namespace

TEST_CASE("an interrupt saves what is newer than the newest checkpoint, wherever it comes") {
  SUBCASE("while the run validates") {
    DataRun run;
    CHECK(run.ask(atom::decide_v).validate);
    CHECK_FALSE(run.validated().save);
    CHECK_FALSE(run.train(1).save);
    CHECK(run.train(2).validate);
    caf::anon_send(run.data, atom::interrupt_v);
    const auto decision = run.validated();
    CHECK(decision.stop);
    CHECK(decision.interrupted);
    CHECK(decision.save);
    CHECK(nlohmann::json::parse(decision.state_json).at("step") == 2);
  }
  SUBCASE("while it validates after a step that was saved: once is enough") {
    DataRun run;
    const auto saved = run.train(4);
    CHECK(saved.save);
    CHECK(saved.validate);
    caf::anon_send(run.data, atom::interrupt_v);
    const auto decision = run.validated();
    CHECK(decision.stop);
    CHECK_FALSE(decision.save);
  }
  SUBCASE("while it waits for a batch, or before the first step") {
    DataRun run;
    run.train(1);
    caf::anon_send(run.data, atom::interrupt_v);
    CHECK(run.ask(atom::decide_v).save);
    DataRun fresh;
    caf::anon_send(fresh.data, atom::interrupt_v);
    const auto decision = fresh.ask(atom::decide_v);
    CHECK(decision.stop);
    CHECK_FALSE(decision.save);
    CHECK_FALSE(decision.validate);
  }
}

}  // namespace troupe
