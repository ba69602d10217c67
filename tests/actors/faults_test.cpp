// Faults of rollout and reward in one process, on virtual time: who falls is replaced, its work is done once, and what
// cannot be done ends the run with its cause. Faults of trainer, director and buffer: failures_test.cpp.
#include "tests/actors/virtual_run.h"

namespace troupe {
namespace {

using namespace actor_tests;

/// Every sample of groups 0..num_groups-1 was trained, once.
void check_all_trained(const VirtualRun& run, size_t num_groups) {
  CHECK(run.times_trained.size() == num_groups * static_cast<size_t>(run.num_samples));
  for (const auto& [sample, times] : run.times_trained) CHECK(times == 1);
  const auto fates = run.fates();
  CHECK(fates.size() == run.times_trained.size());
  for (const auto& [sample, fate] : fates) CHECK(fate == "trained");
}

}  // namespace

TEST_CASE("once the gate has fallen, a worker of another process that is overdue is ended by the supervisor itself") {
  VirtualRun run;
  run.num_steps = 2;
  gate_actor gate;
  run.start_gate = [&](caf::actor_system& system) {
    return gate = system.spawn([](gate_actor::pointer) -> gate_actor::behavior_type {
      return {
          [](atom::hello, const Hello&) { return Welcome{}; },
          [](atom::leave, int32_t) { return int32_t{0}; },
          [](atom::ended, const std::string&) { return int32_t{0}; },
          [](atom::arrive, const std::string&, const caf::strong_actor_ptr&) {},
          [](atom::overdue, int32_t, const std::string&) {},
          [](atom::next) {},
      };
    });
  };
  bool has_ended = false;
  // Nothing is graded before, so that the run goes on.
  run.reward_time = [](uint64_t) { return kUnit; };
  run.start();
  run.stage.coordinator.run();
  const auto foreign = run.stage.add(run.stage.system.spawn(
      timed_rollout, TimedRollout{7, 1, run.director, run.reward, run.board, [](uint64_t) { return kUnit; }, {}}));
  foreign->attach_functor([&] { has_ended = true; });
  caf::anon_send_exit(gate, caf::exit_reason::kill);
  gate = gate_actor();
  run.stage.run_jobs();
  CHECK_FALSE(has_ended);
  caf::anon_send(run.supervisor, atom::overdue_v, std::string("rollout"), int32_t{7},
                 caf::actor_cast<caf::strong_actor_ptr>(foreign), std::string("hangs"));
  run.stage.run_jobs();
  CHECK(has_ended);
  REQUIRE(run.play());
  CHECK_MESSAGE(run.code == 0, run.cause);
  check_all_trained(run, 2);
}

TEST_CASE("a rollout worker that throws in the middle of a sample is restarted, and its work is done once") {
  VirtualRun run;
  run.admission = {2, 1, 1};
  run.num_steps = 4;
  run.train_time = [](int, int64_t) { return kUnit; };
  bool thrown = false;
  run.work = [&](int) {
    return FakeWork::Hooks{{}, [&](Trajectory& t) {
                             if (t.sample_id == make_sample_id(2, 1) && !std::exchange(thrown, true))
                               fail("engine: logits are not finite");
                             if (t.sample_id == make_sample_id(2, 1)) CHECK(t.attempt == 1);
                           }};
  };
  REQUIRE(run.play());
  CHECK(run.code == 0);
  CHECK(run.cause.empty());
  CHECK(thrown);
  CHECK(run.num_starts[0] + run.num_starts[1] == 3);
  check_all_trained(run, 8);
  CHECK(run.metrics().back().at("rollout/num_reissued").get<int64_t>() >= 1);
}

TEST_CASE("B121 a generator that always throws ends the run with its name and its error; nothing is trained") {
  VirtualRun run;
  run.restarts.num_restarts = 2;
  run.work = [](int) { return FakeWork::Hooks{{}, [](Trajectory&) { fail("engine: no memory for the KV cache"); }}; };
  REQUIRE(run.play());
  CHECK(run.code == 1);
  CHECK(run.cause.find("rollout") != std::string::npos);
  CHECK(run.cause.find("no memory for the KV cache") != std::string::npos);
  CHECK(run.num_steps_trained == 0);
  CHECK(run.saved_steps.empty());
}

TEST_CASE("B121 a generator that cannot even start says so too") {
  VirtualRun run;
  run.num_workers = 1;
  run.restarts.num_restarts = 1;
  run.work = [](int) -> FakeWork::Hooks { fail("engine: 64 blocks hold no sequence"); };
  REQUIRE(run.play());
  CHECK(run.code == 1);
  CHECK(run.cause.find("rollout 0") != std::string::npos);
  CHECK(run.cause.find("64 blocks hold no sequence") != std::string::npos);
}

TEST_CASE("B122 of two workers one is killed after three samples: sixteen unique samples, one step, within the limit") {
  for (const bool is_restarted : {true, false}) {
    VirtualRun run;
    run.admission = {8, 0, 1};
    run.num_steps = 1;
    run.credit = 4;
    run.num_workers = is_restarted ? 1 : 2;  // its own successor does the work, or the survivor
    run.restarts.num_restarts = is_restarted ? 5 : 0;
    int num_made = 0;
    run.work = [&](int worker) {
      return FakeWork::Hooks{{}, [&run, &num_made, worker](Trajectory&) {
                               if (worker == 0 && ++num_made == 3)
                                 caf::anon_send_exit(run.rollouts.at(0), caf::exit_reason::kill);
                             }};
    };
    REQUIRE(run.play());
    CAPTURE(is_restarted);
    CHECK(run.code == 0);
    CHECK(run.num_starts[0] == (is_restarted ? 2 : 1));
    CHECK(run.stage.now() < run.limit);
    check_all_trained(run, 8);
    CHECK(run.batches.size() == 1);
  }
}

TEST_CASE("a worker that is frozen is lost after the limit: its work goes to the others, its seat to a new one") {
  for (const bool is_restarted : {true, false}) {
    VirtualRun run;
    run.admission = {2, 0, 1};
    run.num_steps = 3;
    run.limit = 60 * kUnit;
    run.restarts.num_restarts = is_restarted ? 5 : 0;
    run.start_rollout = [&run](caf::actor_system& system, int worker, director_actor director, reward_actor reward) {
      const bool frozen = worker == 0 && run.num_starts[0] == 1;
      return system.spawn(timed_rollout,
                          TimedRollout{worker, run.credit, director, reward, run.board,
                                       [frozen](uint64_t) { return frozen ? 1'000'000 * kUnit : kUnit; }});
    };
    REQUIRE(run.play());
    CAPTURE(is_restarted);
    CHECK(run.code == 0);
    CHECK(run.stage.now() < 2 * run.limit);
    check_all_trained(run, 6);
  }
}

TEST_CASE("where each worker has groups of its own, the loss of one for good ends the run at once, by its name") {
  VirtualRun run;
  run.admission = {2, 0, 1};
  run.num_steps = 3;
  run.restarts.num_restarts = 0;
  run.needs_every_rollout = true;
  run.work = [](int worker) {
    return FakeWork::Hooks{{}, [worker](Trajectory&) {
                             if (worker == 0) fail("engine: broken");
                           }};
  };
  REQUIRE(run.play());
  CHECK(run.code == 1);
  CHECK(run.cause.find("rollout 0") != std::string::npos);
  CHECK(run.cause.find("engine: broken") != std::string::npos);
  CHECK(run.stage.now() < run.limit);
}

TEST_CASE("restarts are counted in a window: a worker that falls now and then is never given up") {
  VirtualRun run;
  run.num_workers = 1;
  run.admission = {1, 0, 1};
  run.num_steps = 20;
  run.restarts = {2, 60 * kUnit, kUnit / 10, 30 * kUnit};
  run.train_time = [](int, int64_t) { return 40 * kUnit; };
  run.work = [](int) {
    return FakeWork::Hooks{{}, [](Trajectory& t) {
                             if (t.attempt == 0 && t.sample_id % kSamplesPerGroupLimit == 0) fail("now and then");
                           }};
  };
  REQUIRE(run.play());
  CHECK(run.code == 0);
  CHECK(run.num_starts[0] == 21);
  check_all_trained(run, 20);
}

TEST_CASE("what one sample does to the rules is its own failure: retried, then given up once with the reason") {
  for (const int num_failures : {1, 1'000'000}) {
    VirtualRun run;
    run.admission = {1, 0, 1};
    run.num_steps = 3;
    int failures = 0;
    run.score = [&](Trajectory& t) {
      if (t.sample_id == make_sample_id(1, 0) && failures < num_failures) {
        ++failures;
        throw std::runtime_error("the judge is out");
      }
      t.total_reward = double(t.sample_id % kSamplesPerGroupLimit);
    };
    REQUIRE(run.play());
    CAPTURE(num_failures);
    CHECK(run.code == 0);
    CHECK(run.num_reward_starts == 1);
    const auto fates = run.fates();
    CHECK(fates.size() == 6);
    const auto& fate = fates.at(make_sample_id(1, 0));
    if (num_failures == 1) {
      CHECK(fate == "trained");
    } else {
      CHECK(fate.find("given up: ") == 0);
      CHECK(fate.find("the judge is out") != std::string::npos);
      CHECK(failures == 3 * 4);  // three attempts of four questions each
      CHECK(run.metrics().back().at("rollout/num_given_up") == 1);
    }
    CHECK(fates.at(make_sample_id(1, 1)) == "trained");
  }
}

TEST_CASE("B125 a reward that is NaN, or that answers for another sample, enters no batch and is counted") {
  for (const bool is_nan : {true, false}) {
    VirtualRun run;
    run.admission = {1, 0, 1};
    run.num_steps = 2;
    run.score = [&](Trajectory& t) {
      t.total_reward = 1;
      if (t.sample_id != make_sample_id(0, 1)) return;
      if (is_nan)
        t.total_reward = std::nan("");
      else
        ++t.sample_id;
    };
    run.shard.on_train = [](int, const TrainBatch& batch) {
      for (const auto& sample : batch.trajectories) CHECK(std::isfinite(sample.total_reward.value()));
    };
    REQUIRE(run.play());
    CAPTURE(is_nan);
    CHECK(run.code == 0);
    CHECK(run.times_trained.size() == 3);
    const auto fate = run.fates().at(make_sample_id(0, 1));
    CHECK(fate.find("given up: ") == 0);
    CHECK(fate.find(is_nan ? "not finite" : "the answer is for sample 2") != std::string::npos);
    CHECK(run.metrics().front().at("train_batch/num_samples_given_up") == 1);
  }
}

TEST_CASE("a reward actor that is killed is replaced; what it was asked is asked again") {
  VirtualRun run;
  run.admission = {2, 1, 1};
  run.num_steps = 6;
  run.reward_time = [](uint64_t) { return kUnit; };
  run.rollout_time = nullptr;
  int num_scored = 0;
  run.score = [&](Trajectory& t) {
    t.total_reward = double(t.sample_id % kSamplesPerGroupLimit);
    if (++num_scored == 5) caf::anon_send_exit(run.reward, caf::exit_reason::kill);
  };
  REQUIRE(run.play());
  CHECK(run.code == 0);
  CHECK(run.num_reward_starts == 2);
  check_all_trained(run, 12);
}

TEST_CASE("B110 a reward actor that takes a promise and quits before it delivers: asked again, the group completes") {
  VirtualRun run;
  run.num_steps = 2;
  run.start_reward = [&](caf::actor_system& system, sample_store_actor buffer) -> reward_actor {
    if (run.num_reward_starts > 1) return spawn_reward(system, buffer, {[&] { return run.score; }, run.trace, false});
    return system.spawn([](reward_actor::pointer self) -> reward_actor::behavior_type {
      return {[self](atom::score, const Packed&) -> caf::result<int32_t> {
        auto promise = self->make_response_promise<int32_t>();
        self->quit(caf::exit_reason::normal);
        return promise;
      }};
    });
  };
  REQUIRE(run.play());
  CHECK(run.code == 0);
  CHECK(run.num_reward_starts == 2);
  check_all_trained(run, 2);
}

TEST_CASE("a worker asks for few scores at a time: a queue of its own making is no frozen reward actor") {
  VirtualRun run;
  run.num_workers = 1;
  run.num_samples = run.credit = 64;
  run.num_steps = 1;
  run.score_limit = 20 * kUnit;  // 64 scores one after the other take 64
  Milliseconds free_at{0};
  run.reward_time = [&](uint64_t) {
    const Milliseconds now = run.stage.now();
    free_at = std::max(free_at, now) + kUnit;
    return free_at - now;
  };
  REQUIRE(run.play());
  CHECK(run.code == 0);
  CHECK(run.num_reward_starts == 1);
  check_all_trained(run, 1);
}

TEST_CASE("a reward actor that never answers is replaced after the limit; one that never does ends the run") {
  for (const bool comes_back : {true, false}) {
    VirtualRun run;
    run.num_steps = 2;
    run.restarts.num_restarts = 2;
    run.start_reward = [&](caf::actor_system& system, sample_store_actor buffer) -> reward_actor {
      if (comes_back && run.num_reward_starts > 1)
        return spawn_reward(system, buffer, {[&] { return run.score; }, run.trace, false});
      return system.spawn([](reward_actor::pointer self) -> reward_actor::behavior_type {
        auto promises = std::make_shared<std::vector<caf::typed_response_promise<int32_t>>>();
        return {[self, promises](atom::score, const Packed&) -> caf::result<int32_t> {
          promises->push_back(self->make_response_promise<int32_t>());
          return promises->back();
        }};
      });
    };
    REQUIRE(run.play());
    CAPTURE(comes_back);
    if (comes_back) {
      CHECK(run.code == 0);
      CHECK(run.num_reward_starts == 2);
      check_all_trained(run, 2);
    } else {
      CHECK(run.code == 1);
      CHECK(run.num_reward_starts == 3);
      CHECK(run.cause.find("reward fell 3 times") != std::string::npos);
      CHECK(run.cause.find("score of sample") != std::string::npos);
      CHECK(run.num_steps_trained == 0);
    }
  }
}

TEST_CASE("an answer that comes late, after the sample was asked for again, counts once") {
  VirtualRun run;
  run.num_steps = 3;
  run.start_reward = [&](caf::actor_system& system, sample_store_actor buffer) -> reward_actor {
    if (run.num_reward_starts > 1) return spawn_reward(system, buffer, {[&] { return run.score; }, run.trace, false});
    // Hands the sample to the buffer, but the word of it never reaches the asker.
    return system.spawn([buffer, &run](reward_actor::pointer self) -> reward_actor::behavior_type {
      auto promises = std::make_shared<std::vector<caf::typed_response_promise<int32_t>>>();
      return {[=, &run](atom::score, const Packed& packed) -> caf::result<int32_t> {
        auto trajectory = unpack(packed);
        run.score(trajectory);
        self->request(buffer, caf::infinite, atom::store_v, pack(trajectory))
            .then([](int32_t) {}, [](const caf::error&) {});
        promises->push_back(self->make_response_promise<int32_t>());
        return promises->back();
      }};
    });
  };
  run.train_time = [](int, int64_t) { return 30 * kUnit; };
  REQUIRE(run.play());
  CHECK(run.code == 0);
  check_all_trained(run, 3);
  const auto last = run.metrics().back();
  CHECK(last.at("rollout_buffer/num_duplicates").get<int64_t>() + last.at("rollout_buffer/num_unknown").get<int64_t>() >
        0);
}

TEST_CASE("prompts that cannot be encoded or served are given up, counted, and their places filled") {
  VirtualRun run;
  run.admission = {1, 0, 1};
  run.num_steps = 3;
  run.encode = [](uint64_t prompt) {
    if (prompt == 1) throw std::runtime_error("template: no such variable");
    return EncodedPrompt{{1, 2}, "{}"};
  };
  run.work = [](int) {
    return FakeWork::Hooks{[](const WorkOrder& order, size_t) {
                             if (order.group == 2) fail("prompt of 900 tokens is too long");
                           },
                           {}};
  };
  REQUIRE(run.play());
  CHECK(run.code == 0);
  CHECK(run.batches == std::vector<std::vector<uint64_t>>{{0}, {3}, {4}});
  const auto fates = run.fates();
  CHECK(fates.size() == 10);
  CHECK(fates.at(make_sample_id(1, 0)) == "given up: template: no such variable");
  CHECK(fates.at(make_sample_id(2, 1)) == "given up: prompt of 900 tokens is too long (attempt 3 of 3)");
  CHECK(run.metrics().back().at("rollout_buffer/dropped/failed") == 2);
}

}  // namespace troupe
