// The models beside the policy, on virtual time: a critic whose values come before the update and which learns while
// the policy does, a reference between reward and buffer, and what becomes of a run in which one of them falls.
#include "actors/critic.h"
#include "actors/reference.h"
#include "tests/actors/virtual_run.h"

namespace troupe {
namespace {

using namespace actor_tests;

/// Says of a token its place, times `factor`; remembers what it was asked.
class FakeJudge : public ShardWork {
 public:
  struct Hooks {
    std::function<void(const TrainBatch&)> on_judge, on_train;  // may throw
    std::function<void(int64_t step)> on_save;
  };
  FakeJudge(float factor, Hooks hooks) : factor_(factor), hooks_(std::move(hooks)) {}
  nlohmann::json load() override { return nlohmann::json::object(); }
  TokenNumbers judge(const TrainBatch& batch) override {
    if (hooks_.on_judge) hooks_.on_judge(batch);
    TokenNumbers numbers;
    for (const auto& t : batch.trajectories) {
      numbers.emplace_back();
      for (size_t i = 0; i < t.tokens.size(); ++i) numbers.back().push_back(factor_ * static_cast<float>(i));
    }
    return numbers;
  }
  nlohmann::json train(const TrainBatch& batch) override {
    if (hooks_.on_train) hooks_.on_train(batch);
    return {{"critic/loss", 0.25}};
  }
  nlohmann::json save(int64_t step, const StepDecision&) override {
    if (hooks_.on_save) hooks_.on_save(step);
    return nlohmann::json::object();
  }
  nlohmann::json write_model(const std::string&) override { return nlohmann::json::object(); }
  void abort(const std::string&) override {}

 private:
  float factor_;
  Hooks hooks_;
};

ShardGroupSetup judge_ranks(const VirtualRun& run, float factor, FakeJudge::Hooks hooks, const char* role) {
  ShardGroupSetup setup;
  setup.make_work = [=](int) { return std::make_unique<FakeJudge>(factor, hooks); };
  setup.role = role;
  setup.trace = run.trace;
  setup.limit = run.limit;
  setup.detached = false;
  return setup;
}

void set_critic(VirtualRun& run, const FakeJudge::Hooks& hooks) {
  run.start_critic = [&run, hooks](caf::actor_system& system) {
    return run.stage.add(spawn_critic(system, judge_ranks(run, 10, hooks, "critic")));
  };
}

void set_reference(VirtualRun& run, const FakeJudge::Hooks& hooks) {
  run.start_reference = [&run, hooks](caf::actor_system& system, const sample_store_actor& buffer,
                                      const supervisor_actor&) {
    return run.stage.add(spawn_reference(system, buffer, {judge_ranks(run, -1, hooks, "reference"), 4}));
  };
}

}  // namespace

TEST_CASE("values come before the step, policy and critic learn from them, and the critic's checkpoint is first") {
  VirtualRun run;
  run.save_interval = 2;
  std::vector<std::string> order;
  set_critic(run, {[&](const TrainBatch& batch) { order.push_back(concat("values ", batch.step)); },
                   [&](const TrainBatch& batch) {
                     order.push_back(concat("critic ", batch.step));
                     for (const auto& t : batch.trajectories) CHECK(t.values == std::vector<float>{0, 10, 20});
                   },
                   [&](int64_t step) { order.push_back(concat("critic saves ", step)); }});
  run.shard.on_train = [&](int, const TrainBatch& batch) {
    order.push_back(concat("policy ", batch.step));
    for (const auto& t : batch.trajectories) CHECK(t.values == std::vector<float>{0, 10, 20});
  };
  run.shard.on_save = [&](int, int64_t step, const StepDecision&) { order.push_back(concat("policy saves ", step)); };
  REQUIRE(run.play());
  CHECK_MESSAGE(run.code == 0, run.cause);
  const auto place = [&](const std::string& what) {
    const auto found = std::find(order.begin(), order.end(), what);
    REQUIRE_MESSAGE(found != order.end(), what);
    return found - order.begin();
  };
  for (int step = 1; step <= 4; ++step) {
    CHECK(place(concat("values ", step)) < place(concat("critic ", step)));
    CHECK(place(concat("values ", step)) < place(concat("policy ", step)));
    if (step > 1) CHECK(place(concat("critic ", step - 1)) < place(concat("values ", step)));
  }
  CHECK(place("critic saves 2") < place("policy saves 2"));
  for (const auto& line : run.metrics())
    if (line.contains("loss/mean")) CHECK(line.at("critic/loss") == 0.25);
  run.check_each_trained_once(run.num_steps);
}

TEST_CASE("policy and critic of one unit each give one step a unit") {
  VirtualRun run;
  run.admission = {1, 2, 1};
  run.num_steps = 6;
  run.train_time = [](int, int64_t) { return kUnit; };
  run.start_critic = [&](caf::actor_system& system) {
    ShardGroupSetup setup;
    setup.start_shard = [&](caf::actor_system& host, int) {
      const std::shared_ptr<ShardWork> work = std::make_shared<FakeJudge>(1.0f, FakeJudge::Hooks{});
      return shard_actor(run.stage.add(host.spawn(timed_shard, work, [](int64_t) { return kUnit; })));
    };
    setup.trace = run.trace;
    return run.stage.add(spawn_critic(system, setup));
  };
  REQUIRE(run.play());
  CHECK_MESSAGE(run.code == 0, run.cause);
  REQUIRE(run.step_times.size() == 6);
  for (size_t i = 1; i < 6; ++i) CHECK(run.step_times[i] - run.step_times[i - 1] == kUnit);
}

TEST_CASE("a critic that falls in the middle of a step ends the run with its name, the step and the cause") {
  VirtualRun run;
  std::string wanted;
  FakeJudge::Hooks hooks;
  SUBCASE("while it judges") {
    hooks.on_judge = [](const TrainBatch& batch) { require(batch.step < 3, "values are not finite"); };
    wanted = "values are not finite";
  }
  SUBCASE("while it learns") {
    hooks.on_train = [](const TrainBatch& batch) { require(batch.step < 3, "the optimizer has no memory"); };
    wanted = "the optimizer has no memory";
  }
  SUBCASE("while it saves") {
    run.save_interval = 2;
    hooks.on_save = [](int64_t) { fail("no space left on the device"); };
    wanted = "no space left on the device";
  }
  set_critic(run, hooks);
  REQUIRE(run.play());
  CHECK(run.code == 1);
  CHECK_MESSAGE(run.cause.find("critic") != std::string::npos, run.cause);
  CHECK_MESSAGE(run.cause.find("step 3") != std::string::npos, run.cause);
  CHECK_MESSAGE(run.cause.find(wanted) != std::string::npos, run.cause);
}

TEST_CASE("a critic that is killed, or does not answer, ends the run within the limits") {
  VirtualRun run;
  run.limit = 10 * kUnit;
  critic_actor critic;
  SUBCASE("killed") {
    run.start_critic = [&](caf::actor_system& system) {
      critic = run.stage.add(spawn_critic(system, judge_ranks(run, 1, {}, "critic")));
      return critic;
    };
    run.shard.on_train = [&](int, const TrainBatch& batch) {
      if (batch.step == 2) caf::anon_send_exit(critic, caf::exit_reason::kill);
    };
  }
  SUBCASE("silent") {
    run.start_critic = [&](caf::actor_system& system) {
      ShardGroupSetup setup;
      setup.limit = run.limit;
      setup.start_shard = [&](caf::actor_system& host, int) {
        const std::shared_ptr<ShardWork> work = std::make_shared<FakeJudge>(1.0f, FakeJudge::Hooks{});
        return shard_actor(run.stage.add(
            host.spawn(timed_shard, work, [](int64_t step) { return step == 2 ? -kUnit : Milliseconds(0); })));
      };
      setup.trace = run.trace;
      return run.stage.add(spawn_critic(system, setup));
    };
  }
  REQUIRE(run.play(100 * kUnit));
  CHECK(run.code == 1);
  CHECK_MESSAGE(run.cause.find("critic") != std::string::npos, run.cause);
  critic = critic_actor();
}

TEST_CASE("every sample passes the reference on its way to the buffer, several at a time") {
  VirtualRun run;
  run.admission = {3, 1, 1};
  run.num_samples = 3;
  run.credit = 12;
  run.train_time = [](int, int64_t) { return kUnit; };
  size_t most = 0;
  set_reference(run, {[&](const TrainBatch& batch) { most = std::max(most, batch.trajectories.size()); }, {}, {}});
  run.shard.on_train = [&](int, const TrainBatch& batch) {
    for (const auto& t : batch.trajectories) CHECK(t.reference_log_probs == std::vector<float>{0, -1, -2});
  };
  REQUIRE(run.play());
  CHECK_MESSAGE(run.code == 0, run.cause);
  CHECK(most > 1);
  CHECK(most <= 4);
  run.check_each_trained_once(run.num_steps);
}

TEST_CASE("a reference that falls is loaded anew, and what it was asked is asked again") {
  VirtualRun run;
  run.admission = {2, 1, 1};
  run.train_time = [](int, int64_t) { return kUnit; };
  int num_asked = 0;
  set_reference(run, {[&](const TrainBatch&) { require(++num_asked != 3, "log-probs are not finite"); }, {}, {}});
  REQUIRE(run.play());
  CHECK_MESSAGE(run.code == 0, run.cause);
  CHECK(run.num_reward_starts == 2);  // a new reference takes a new reward with it
  run.check_each_trained_once(run.num_steps);
}

TEST_CASE("a reference that falls again and again ends the run with its cause") {
  VirtualRun run;
  run.restarts.num_restarts = 2;
  set_reference(run, {[](const TrainBatch&) { fail("log-probs are not finite"); }, {}, {}});
  REQUIRE(run.play());
  CHECK(run.code == 1);
  CHECK_MESSAGE(run.cause.find("reference") != std::string::npos, run.cause);
  CHECK_MESSAGE(run.cause.find("log-probs are not finite") != std::string::npos, run.cause);
}

}  // namespace troupe
