// Faults that end a run: trainer, shard, director, buffer, batches that never come. The run stops non-zero within its
// limit, the cause names actor, rank, step and whom it waited for, and what is sound is saved. On virtual time.
#include "tests/actors/virtual_run.h"

namespace troupe {
namespace {

using namespace actor_tests;

bool has(const std::string& text, const std::string& part) {
  const bool found = text.find(part) != std::string::npos;
  if (!found) MESSAGE("\"", part, "\" is not in: ", text);
  return found;
}

const auto kNeverAfter = [](int64_t last_step) {
  return [last_step](int rank, int64_t step) { return rank == 1 && step > last_step ? Milliseconds(-1) : kUnit; };
};

}  // namespace

TEST_CASE("a shard that throws ends the run: rank, step and cause, its peers' collectives ended, no step after it") {
  VirtualRun run;
  run.num_ranks = 2;
  run.num_steps = 6;
  std::vector<std::string> aborts;
  run.shard.on_train = [](int rank, const TrainBatch& batch) {
    if (rank == 1 && batch.step == 3) fail("loss of micro-batch 2 is not finite");
  };
  run.shard.on_abort = [&](int rank, const std::string& reason) {
    CHECK(rank == 1);
    aborts.push_back(reason);
  };
  REQUIRE(run.play());
  CHECK(run.code == 1);
  CHECK(has(run.cause, "trainer, step 3"));
  CHECK(has(run.cause, "shard 1"));
  CHECK(has(run.cause, "train step at step 3: loss of micro-batch 2 is not finite"));
  REQUIRE(aborts.size() == 1);
  CHECK(has(aborts[0], "micro-batch 2"));
  CHECK(run.metrics().size() == 2);  // what was trained before is on record
  CHECK(run.stage.now() < 10 * kUnit);
}

TEST_CASE("a shard that stalls ends the run at the time limit, naming the rank that has not answered, since when") {
  VirtualRun run;
  run.num_ranks = 2;
  run.limit = 60 * kUnit;
  run.train_time = kNeverAfter(2);
  REQUIRE(run.play());
  CHECK(run.code == 1);
  CHECK(has(run.cause, "trainer, step 3: waited 60.0 s, since "));
  CHECK(has(run.cause, "for shard 1 of 2 (train step): no answer within the time limit"));
  CHECK(has(run.cause, "no answer yet from rank 1"));
  CHECK(run.num_steps_trained == 3);
  CHECK(run.metrics().size() == 2);
  CHECK(run.stage.now() <= run.limit + (2 + 10) * kUnit);  // found at the limit, over within 10 s
}

TEST_CASE("a shard that is killed, or that throws while it loads, publishes or saves, ends the run at once") {
  for (const char* what : {"killed", "load", "save"}) {
    VirtualRun run;
    run.save_interval = 2;
    if (what == std::string("killed")) {
      run.train_time = [](int, int64_t) { return kUnit; };
      run.shard.on_train = [&](int, const TrainBatch& batch) {
        if (batch.step == 2) fail("killed");  // timed_shard does not catch: the actor dies of it
      };
    } else if (what == std::string("load")) {
      run.shard.on_train = [](int, const TrainBatch&) { FAIL("nothing was loaded"); };
      run.make_work = [](int rank) -> std::unique_ptr<ShardWork> { fail("tensor lm_head.weight is missing"); };
    } else {
      run.shard.on_save = [](int, int64_t, const StepDecision&) { fail("No space left on device"); };
    }
    REQUIRE(run.play());
    CAPTURE(what);
    CHECK(run.code == 1);
    CHECK(has(run.cause, "shard 0"));
    if (what == std::string("load")) CHECK(has(run.cause, "lm_head.weight is missing"));
    if (what == std::string("save")) CHECK(has(run.cause, "save at step 2: No space left on device"));
    CHECK(run.stage.now() < 10 * kUnit);
  }
}

TEST_CASE("B051 a shard that throws while it publishes leaves board and workers at the version before") {
  struct Publisher : FakeShard {
    using FakeShard::FakeShard;
    nlohmann::json publish(int64_t version) override {
      if (version == 3) fail("rank 1 left in the middle of the gather");
      return FakeShard::publish(version);
    }
  };
  VirtualRun run;
  run.num_steps = 6;
  run.make_work = [&](int rank) { return std::make_unique<Publisher>(rank, run.board, FakeShardHooks{}); };
  int64_t newest_made = -1;
  run.work = [&](int) {
    return FakeWork::Hooks{{}, [&](Trajectory& t) { newest_made = std::max(newest_made, t.versions[0].version); }};
  };
  REQUIRE(run.play());
  CHECK(run.code == 1);
  CHECK(has(run.cause, "shard 0, publish at step 3: rank 1 left in the middle of the gather"));
  CHECK(run.board->version() == 2);
  CHECK(newest_made == 2);
  CHECK(run.metrics().size() == 2);  // the step that nobody can be given is none
}

TEST_CASE("where nothing can be trained on, what was trained is saved and the counts are the cause") {
  VirtualRun run;
  run.num_steps = 10;
  run.save_at_end = true;
  run.zero_variance = ZeroVariance::kDrop;
  run.score = [](Trajectory& t) {
    t.total_reward = t.group < 3 ? double(t.sample_id % kSamplesPerGroupLimit) : 1.0;  // solved from then on
  };
  REQUIRE(run.play());
  CHECK(run.code == 1);
  CHECK(has(run.cause, "5 zero_variance"));
  CHECK(has(run.cause, "algorithm.zero_variance"));
  CHECK(run.num_steps_trained == 3);
  CHECK(run.saved_steps == std::vector<int64_t>{3});
  // A resume with another setting goes on from there.
  VirtualRun resumed;
  resumed.resume(run);
  resumed.num_steps = 6;
  resumed.zero_variance = ZeroVariance::kKeep;
  REQUIRE(resumed.play());
  CHECK(resumed.code == 0);
  CHECK(resumed.num_steps_trained == 3);
}

TEST_CASE("rollout workers that die for good leave a checkpoint of what was trained") {
  VirtualRun run;
  run.num_steps = 10;
  run.save_at_end = true;
  run.restarts.num_restarts = 1;
  run.work = [](int) {
    return FakeWork::Hooks{{}, [](Trajectory& t) {
                             if (t.group >= 4) fail("the disk with the cache is gone");
                           }};
  };
  REQUIRE(run.play());
  CHECK(run.code == 1);
  CHECK(has(run.cause, "the disk with the cache is gone"));
  CHECK(run.num_steps_trained == 4);
  CHECK(run.saved_steps == std::vector<int64_t>{4});
}

TEST_CASE("a batch that never comes: the time-out prints who waits for whom, and what was trained is saved") {
  VirtualRun run;
  run.admission = {2, 0, 1};
  run.limit = 60 * kUnit;
  run.save_at_end = true;
  run.rollout_time = [](uint64_t sample) { return (group_of_sample(sample) == 5 ? 1'000'000 : 1) * kUnit; };
  // The worker is heard of all the time, so that it is not overdue: only the batch is.
  std::function<void()> beat = [&] {
    if (run.is_over) return;
    caf::anon_send(run.director, atom::progress_v, WorkerStatus{0});
    caf::anon_send(run.director, atom::progress_v, WorkerStatus{1});
  };
  run.start();
  REQUIRE(run.stage.run_until([&] {
    beat();
    run.stage.run_jobs();
    return run.is_over;
  }));
  CHECK(run.code == 1);
  CHECK(has(run.cause, "trainer, step 3: waited 180.0 s, since "));
  CHECK(has(run.cause, "for the batch source (batch): no answer within the time limit"));
  CHECK(has(run.cause, "director, step 3: 2 samples outstanding, 0 of them wait for a worker"));
  CHECK(has(run.cause, "oldest group 5 lacks 2 samples"));
  CHECK(has(run.cause, "buffer: 1 groups complete, 1 in flight; the oldest, group 4, has 2 of 2 samples"));
  CHECK(run.saved_steps == std::vector<int64_t>{2});
  CHECK(run.stage.now() <= 3 * run.limit + 20 * kUnit);
}

TEST_CASE("a director or a buffer that falls, or is frozen, ends the run by its name") {
  SUBCASE("director") {
    VirtualRun run;
    run.num_steps = 100;
    run.shard.on_train = [&](int, const TrainBatch& batch) {
      if (batch.step == 3) caf::anon_send_exit(run.director, caf::exit_reason::kill);
    };
    REQUIRE(run.play());
    CHECK(run.code == 1);
    CHECK((has(run.cause, "director fell") || has(run.cause, "run control")));
    CHECK(run.stage.now() < 10 * kUnit);
  }
  SUBCASE("buffer") {
    VirtualRun run;
    run.num_steps = 100;
    run.shard.on_train = [&](int, const TrainBatch& batch) {
      if (batch.step == 3) caf::anon_send_exit(run.buffer, caf::exit_reason::kill);
    };
    REQUIRE(run.play());
    CHECK(run.code == 1);
    CHECK(has(run.cause, "buffer fell"));
    CHECK(run.stage.now() < 10 * kUnit);
  }
  SUBCASE("a frozen buffer") {
    VirtualRun run;
    run.limit = 60 * kUnit;
    run.start_buffer = [](caf::actor_system& system) -> buffer_actor {
      return system.spawn([](buffer_actor::pointer self) -> buffer_actor::behavior_type {
        auto batches = std::make_shared<std::vector<caf::typed_response_promise<LocalBatch>>>();
        auto texts = std::make_shared<std::vector<caf::typed_response_promise<std::string>>>();
        return {
            [=](atom::batch, int64_t) -> caf::result<LocalBatch> {
              batches->push_back(self->make_response_promise<LocalBatch>());
              return batches->back();
            },
            [](atom::arrive, const caf::strong_actor_ptr&) {},
            [](atom::admit, const GroupTicket&) {},
            [](atom::store, const Packed&) { return int32_t{0}; },
            [](atom::give_up, uint64_t, const std::string&) {},
            [](atom::snapshot) { return Packed{}; },
            [](atom::interrupt) {},
            [=](atom::status) -> caf::result<std::string> {
              texts->push_back(self->make_response_promise<std::string>());
              return texts->back();
            },
        };
      });
    };
    REQUIRE(run.play());
    CHECK(run.code == 1);
    CHECK(has(run.cause, "waited 180.0 s"));
    CHECK(has(run.cause, "director, step 1: waited 2.0 s, since "));
    CHECK(has(run.cause, "for the buffer (status): no answer within the time limit"));
    CHECK(run.stage.now() <= 3 * run.limit + 10 * kUnit);
  }
}

TEST_CASE("an evaluator that throws, dies or never answers costs its score, not the run") {
  for (const char* how : {"throws", "dies", "never"}) {
    VirtualRun run;
    run.evaluate = true;
    run.limit = 60 * kUnit;
    run.evaluation = [how](int64_t) -> nlohmann::json { fail("no prompts"); };
    if (how != std::string("throws"))
      run.start_evaluator = [how](caf::actor_system& system) -> evaluator_actor {
        return system.spawn([how](evaluator_actor::pointer self) -> evaluator_actor::behavior_type {
          auto promise = std::make_shared<caf::typed_response_promise<std::string>>();
          return {[=](atom::evaluate, int64_t) -> caf::result<std::string> {
            if (how == std::string("dies")) self->quit(caf::exit_reason::kill);
            *promise = self->make_response_promise<std::string>();
            return *promise;
          }};
        });
      };
    REQUIRE(run.play());
    CAPTURE(how);
    CHECK(run.code == 0);
    CHECK(run.num_steps_trained == 4);
  }
}

TEST_CASE("the user's interrupt ends the run after the step with a checkpoint, from wherever it stands") {
  for (const char* where : {"training", "waiting", "evaluating"}) {
    VirtualRun run;
    run.admission = {2, 1, 1};
    run.num_steps = 100;
    run.save_at_end = true;
    run.rollout_time = [](uint64_t) { return 5 * kUnit; };
    run.train_time = [](int, int64_t) { return 2 * kUnit; };
    Milliseconds when{};
    if (where == std::string("evaluating")) {
      run.evaluate = true;
      run.evaluation_interval = 2;
      run.start_evaluator = [](caf::actor_system& system) -> evaluator_actor {
        return system.spawn([](evaluator_actor::pointer self) -> evaluator_actor::behavior_type {
          auto promise = std::make_shared<caf::typed_response_promise<std::string>>();
          return {[=](atom::evaluate, int64_t step) -> caf::result<std::string> {
            if (step == 0) return std::string(R"({"evaluation/score":0.5})");
            *promise = self->make_response_promise<std::string>();
            return *promise;  // busy for ever
          }};
        });
      };
    }
    run.start();
    if (where == std::string("evaluating")) {
      REQUIRE(run.stage.run_until([&] { return run.metrics().size() == 3; }));  // step 0's score, two steps
    } else {
      REQUIRE(run.stage.run_until([&] { return run.num_steps_trained == 3; }));
      if (where == std::string("waiting")) REQUIRE(run.stage.run_until([&] { return run.metrics().size() == 4; }));
    }
    when = run.stage.now();
    caf::anon_send(run.supervisor, atom::interrupt_v);
    REQUIRE(run.play());
    CAPTURE(where);
    CHECK(run.code == 130);
    CHECK(run.cause.empty());
    CHECK(run.stage.now() - when <= 2 * kUnit);
    REQUIRE(run.saved_steps.size() == 1);
    CHECK(run.saved_steps[0] == run.num_steps_trained);
    if (where != std::string("evaluating")) continue;
    // The resume makes up for the score that the interrupt took, before it goes on.
    VirtualRun resumed;
    resumed.resume(run);
    resumed.admission = run.admission;
    CHECK(resumed.state.evaluated_step == 0);
    resumed.num_steps = 2;
    resumed.evaluate = resumed.save_at_end = true;
    std::vector<int64_t> evaluated;
    resumed.evaluation = [&](int64_t step) {
      evaluated.push_back(step);
      return nlohmann::json{{"evaluation/score", 0.75}};
    };
    REQUIRE(resumed.play());
    CAPTURE(resumed.cause);
    CHECK(resumed.code == 0);
    CHECK(evaluated == std::vector<int64_t>{2});
    CHECK(resumed.saved_steps == std::vector<int64_t>{2});
  }
}

TEST_CASE("prompts that nobody can serve end the run while the trainer is busy, with their reason") {
  VirtualRun run;
  run.num_steps = 10;
  run.admission = {2, 1, 1};
  run.save_at_end = true;
  run.train_time = [](int, int64_t) { return 100 * kUnit; };
  run.encode = [](uint64_t prompt) {
    if (prompt >= 4) fail("prompt ", prompt, " has no tokens");
    return EncodedPrompt{{1, 2}, "{}"};
  };
  REQUIRE(run.play());
  CHECK(run.code == 1);
  CHECK(has(run.cause, "64 groups in a row gave no sample; the last one, 67: prompt 67 has no tokens"));
  CHECK(run.saved_steps.size() == 1);
}

TEST_CASE("exactly once over restarts, drops, a crash and resumes: every sample is trained or dropped with a reason") {
  for (const int64_t window : {1, 3}) {
    std::vector<std::unique_ptr<VirtualRun>> lives;
    int64_t kept_step = 0;
    for (int life = 0; life < 4; ++life) {
      auto run = std::make_unique<VirtualRun>();
      run->admission = {2, 1, window};
      run->num_steps = 12;
      run->num_samples = 3;
      run->save_interval = 2;
      run->save_at_end = true;
      run->zero_variance = ZeroVariance::kRefill;
      run->rollout_time = nullptr;
      run->train_time = [](int, int64_t) { return kUnit; };
      int num_made = 0;
      run->work = [&num_made, life](int) {
        return FakeWork::Hooks{{}, [&num_made, life](Trajectory& t) {
                                 if (++num_made % 17 == 5 + life) fail("falls now and then");
                                 if (t.group % 7 == 3 && t.sample_id % kSamplesPerGroupLimit == 1) t.tokens.back() = 9;
                               }};
      };
      run->restarts.num_restarts = 1000;
      run->score = [](Trajectory& t) {
        if (t.tokens.back() == 9) fail("no verdict");
        t.total_reward = t.group % 4 == 1 ? 1.0 : double(t.sample_id % kSamplesPerGroupLimit);
      };
      run->shard.on_train = [life](int, const TrainBatch& batch) {
        if (life < 3 && batch.step == 3 * life + 4) fail("power cut");
      };
      if (life > 0) run->resume(*lives.back());
      CHECK(run->state.step == kept_step);
      REQUIRE(run->play());
      CHECK(run->code == (life < 3 ? 1 : 0));
      kept_step = run->saved_steps.empty() ? kept_step : run->saved_steps.back();
      lives.push_back(std::move(run));
    }
    const auto& last = *lives.back();
    CHECK(last.metrics().size() == 12);
    const auto fates = last.fates();  // checks that no sample stands there twice
    // Every sample of every group up to the last one trained has its line.
    uint64_t last_group = 0;
    for (const auto& [sample, fate] : fates) last_group = std::max(last_group, group_of_sample(sample));
    std::map<std::string, int> counts;
    for (uint64_t group = 0; group <= last_group; ++group)
      for (uint32_t k = 0; k < 3; ++k) {
        const auto id = make_sample_id(group, k);
        CAPTURE(id);
        const bool is_known = fates.contains(id);
        CHECK(is_known);
        if (!is_known) continue;
        ++counts[fates.at(id).substr(0, fates.at(id).find(':'))];
        if (group % 7 == 3 && k == 1) {
          CHECK(fates.at(id).find("no verdict") != std::string::npos);
        } else if (group % 4 == 1) {
          CHECK(fates.at(id) == "dropped: zero_variance");
        } else {
          CHECK(fates.at(id) == "trained");
        }
      }
    CHECK(counts["trained"] > 0);
    CHECK(counts["dropped"] > 0);
    CHECK(counts["given up"] > 0);
    const auto num_dropped = last.metrics().back().at("rollout_buffer/dropped/zero_variance").get<int>();
    CHECK(num_dropped * 3 >= counts["dropped"]);
  }
}

}  // namespace troupe
