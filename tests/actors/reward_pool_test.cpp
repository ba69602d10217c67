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

/// What a grader's process hears of it; it ends the grader that is late.
guest_actor spawn_keeper(caf::actor_system& system, const caf::strong_actor_ptr& grader,
                         std::shared_ptr<std::vector<std::string>> overdue) {
  return system.spawn([=, address = caf::actor_cast<caf::actor_addr>(grader)](guest_actor::pointer) {
    return guest_actor::behavior_type{
        [](atom::ended) -> caf::result<int32_t, std::string> { return caf::make_error(ec::failed); },
        [](atom::ended, const std::string&) {},
        [](atom::arrive, const caf::strong_actor_ptr&) {},
        [=](atom::overdue, const std::string& why) {
          overdue->push_back(why);
          if (const auto who = caf::actor_cast<caf::strong_actor_ptr>(address))
            caf::anon_send_exit(caf::actor_cast<caf::actor>(who), caf::exit_reason::kill);
        },
        [](atom::interrupt) {},
        [](atom::load, int32_t) {},
        [](atom::overdue, int32_t) {},
        [](atom::next) {},
    };
  });
}

/// A run whose reward is a pool of the graders that are there; they outlive the pool, as their guests' would.
struct PooledRun : VirtualRun {
  RewardPoolSetup pool;
  std::vector<grader_actor> graders;
  std::shared_ptr<std::vector<std::string>> overdue = std::make_shared<std::vector<std::string>>();  // graders
  PooledRun() {
    pool.limit = 20 * kUnit;
    pool.wait_for_graders = 100 * kUnit;
    score_limit = limit = 10'000 * kUnit;
    start_reward = [this](caf::actor_system& system, sample_store_actor to) -> reward_actor {
      const auto actor = spawn_reward_pool(system, std::move(to), supervisor, pool);
      for (const auto& grader : graders) introduce(actor, grader);
      return actor;
    };
  }
  ~PooledRun() { graders.clear(); }
  void introduce(const reward_pool_actor& actor, const grader_actor& grader) {
    const auto pointer = caf::actor_cast<caf::strong_actor_ptr>(grader);
    caf::anon_send(actor, atom::arrive_v, pointer,
                   caf::actor_cast<caf::strong_actor_ptr>(stage.add(spawn_keeper(stage.system, pointer, overdue))));
  }
  void introduce(const grader_actor& grader) { introduce(caf::actor_cast<reward_pool_actor>(reward), grader); }
  std::string pool_status() {
    std::string status;
    auto client = stage.system.spawn([&](caf::event_based_actor* self) {
      self->request(caf::actor_cast<reward_pool_actor>(reward), caf::infinite, atom::status_v)
          .then([&](const std::string& answer) { status = answer; });
    });
    stage.add(client);
    stage.run_jobs();
    return status;
  }
  grader_actor good_grader() {
    return stage.add(spawn_grader(stage.system, {[this] { return score; }, trace, false}));
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
  // The one that hangs is given up once, and the process that it is in hears of it.
  CHECK((*run.overdue == std::vector<std::string>{"did not answer a question for 20 s"}));
}

TEST_CASE("an answer for another sample is that question's failure, and is asked for again") {
  PooledRun run;
  run.num_steps = 2;
  run.num_workers = 1;
  run.graders = {run.stage.add(spawn_confused_grader(run.stage.system))};
  run.start();
  run.stage.pass(kUnit);
  run.introduce(run.good_grader());
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
    CHECK(run.pool_status() == R"({"asked":0,"graders":0,"waiting":2})");
    run.introduce(run.good_grader());
    REQUIRE(run.play());
    CHECK_MESSAGE(run.code == 0, run.cause);
    run.check_each_trained_once(3);
  }
  SUBCASE("none joins") {
    REQUIRE(run.play());
    CHECK(run.code == 1);
    CHECK_MESSAGE(run.cause.find("(cluster.wait_for_workers_s)") != std::string::npos, run.cause);
    CHECK(run.stage.now() < 200 * kUnit);
    CHECK(run.stage.now() >= 100 * kUnit);
  }
}

TEST_CASE("the pool is patient for as long as somebody waits for a score, not for as long as nobody grades") {
  // Steps of 150 units in which nothing is to be graded, and 60 units without a grader in which something is.
  PooledRun run;
  run.num_steps = 3;
  run.train_time = [](int, int64_t) { return 150 * kUnit; };
  run.graders = {run.good_grader()};
  run.shard.on_train = [&](int, const TrainBatch& batch) {
    if (batch.step == 1) caf::anon_send_exit(run.graders[0], caf::exit_reason::kill);
  };
  run.start();
  run.stage.pass(210 * kUnit);
  CHECK(run.num_steps_trained == 1);
  CHECK(run.pool_status() == R"({"asked":0,"graders":0,"waiting":2})");
  run.introduce(run.good_grader());
  REQUIRE(run.play());
  CHECK_MESSAGE(run.code == 0, run.cause);
  run.check_each_trained_once(3);
}

}  // namespace troupe
