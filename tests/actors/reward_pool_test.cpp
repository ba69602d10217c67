// Graders of other processes come, fall, hang and leave: every sample is graded, trained once, and nobody waits for
// ever. On virtual time.
#include "actors/reward_pool.h"

#include "base/log.h"
#include "tests/actors/virtual_run.h"

namespace troupe {
namespace {

using namespace actor_tests;

/// Has every question and answers none.
grader_actor spawn_silent_grader(caf::actor_system& system) {
  return system.spawn([](grader_actor::pointer self) -> grader_actor::behavior_type {
    auto questions = std::make_shared<std::vector<caf::typed_response_promise<Packed>>>();
    return {[=](atom::score, const Packed&) -> caf::result<Packed> {
      questions->push_back(self->make_response_promise<Packed>());
      return questions->back();
    }};
  });
}

/// Answers with somebody else's sample.
grader_actor spawn_confused_grader(caf::actor_system& system) {
  return system.spawn([](grader_actor::pointer) -> grader_actor::behavior_type {
    return {[](atom::score, const Packed&) { return pack(make_trajectory(4'000'000, 0, 0)); }};
  });
}

/// A run whose reward is a pool of the graders that are there; they outlive the pool, as their guests' would.
struct PooledRun : VirtualRun {
  RewardPoolSetup pool;
  std::vector<grader_actor> graders;
  PooledRun() {
    pool.limit = 20 * kUnit;
    pool.wait_for_graders = 100 * kUnit;
    score_limit = limit = 10'000 * kUnit;
    start_reward = [this](caf::actor_system& system, buffer_actor to) -> reward_actor {
      const auto actor = spawn_reward_pool(system, std::move(to), supervisor, pool);
      for (const auto& grader : graders) introduce(actor, grader);
      return actor;
    };
  }
  ~PooledRun() { graders.clear(); }
  static void introduce(const reward_pool_actor& actor, const grader_actor& grader) {
    caf::anon_send(actor, atom::arrive_v, caf::actor_cast<caf::strong_actor_ptr>(grader));
  }
  grader_actor good_grader() {
    return stage.add(spawn_grader(stage.system, {[this] { return score; }, trace, false}));
  }
  void check_each_trained_once(int64_t steps) const {
    CHECK(num_steps_trained == steps);
    CHECK(static_cast<int64_t>(times_trained.size()) == steps * admission.num_groups_per_step * num_samples);
    for (const auto& [sample, times] : times_trained) CHECK(times == 1);
  }
};

}  // namespace

TEST_CASE("a grader that falls, one that hangs and one that confuses samples: others grade what they had, once") {
  PooledRun run;
  run.admission = {3, 1, 1};
  run.num_samples = 3;
  run.num_steps = 8;
  run.credit = 12;
  run.train_time = [](int, int64_t) { return kUnit; };
  run.graders = {run.good_grader(), run.stage.add(spawn_silent_grader(run.stage.system)), run.good_grader()};
  run.shard.on_train = [&](int, const TrainBatch& batch) {
    if (batch.step == 3) caf::anon_send_exit(run.graders[0], caf::exit_reason::kill);
  };
  SUBCASE("as it is") {}
  SUBCASE("and the pool itself falls") {
    run.shard.on_train = [&](int, const TrainBatch& batch) {
      if (batch.step == 3) caf::anon_send_exit(run.reward, caf::exit_reason::kill);
    };
  }
  REQUIRE(run.play());
  CHECK_MESSAGE(run.code == 0, run.cause);
  run.check_each_trained_once(8);
  for (const auto& [sample, fate] : run.fates()) CHECK(fate == "trained");
}

TEST_CASE("an answer for another sample is that question's failure, and is asked for again") {
  PooledRun run;
  run.num_steps = 2;
  run.num_workers = 1;
  run.graders = {run.stage.add(spawn_confused_grader(run.stage.system))};
  run.start();
  run.stage.pass(kUnit);
  PooledRun::introduce(caf::actor_cast<reward_pool_actor>(run.reward), run.good_grader());
  caf::anon_send_exit(run.graders[0], caf::exit_reason::kill);
  REQUIRE(run.play());
  CHECK_MESSAGE(run.code == 0, run.cause);
  run.check_each_trained_once(2);
}

TEST_CASE("without graders samples wait for one to join, and the run stops by the limit's name where none does") {
  PooledRun run;
  run.num_steps = 3;
  run.save_at_end = true;
  SUBCASE("one joins late") {
    run.start();
    run.stage.pass(50 * kUnit);
    CHECK(run.num_steps_trained == 0);
    PooledRun::introduce(caf::actor_cast<reward_pool_actor>(run.reward), run.good_grader());
    REQUIRE(run.play());
    CHECK_MESSAGE(run.code == 0, run.cause);
    run.check_each_trained_once(3);
  }
  SUBCASE("none joins") {
    REQUIRE(run.play());
    CHECK(run.code == 1);
    CHECK_MESSAGE(run.cause.find("(cluster.wait_for_workers_s)") != std::string::npos, run.cause);
    CHECK(run.stage.now() < 200 * kUnit);
  }
}

}  // namespace troupe
