// Questions between roles: every error answer is logged with who asked whom for what and counted, none ends the asker
// by accident, and nobody who waits is deaf to an exit. On virtual time.
#include "base/log.h"
#include "tests/actors/virtual_run.h"

namespace troupe {
namespace {

using namespace actor_tests;

/// Log lines while it lives.
class LogCapture {
 public:
  LogCapture() {
    lines().clear();
    log::set_console_sink([](std::string_view line) { lines().emplace_back(line); });
  }
  ~LogCapture() { log::set_console_sink(nullptr); }
  static bool has(const std::string& part) {
    return std::any_of(lines().begin(), lines().end(),
                       [&](const auto& line) { return line.find(part) != std::string::npos; });
  }

 private:
  static std::vector<std::string>& lines() {
    static std::vector<std::string> all;
    return all;
  }
};

const auto kRefusal = [] { return caf::make_error(ec::failed, std::string("the answer is an error")); };

/// A buffer that answers every question with an error.
buffer_actor spawn_refusing_buffer(caf::actor_system& system) {
  return system.spawn([](buffer_actor::pointer) -> buffer_actor::behavior_type {
    return {
        [](atom::batch, int64_t) -> caf::result<LocalBatch> { return kRefusal(); },
        [](atom::arrive, const caf::strong_actor_ptr&) {},
        [](atom::admit, const GroupTicket&) {},
        [](atom::store, const Packed&) -> caf::result<int32_t> { return kRefusal(); },
        [](atom::give_up, uint64_t, const std::string&) {},
        [](atom::snapshot) -> caf::result<Packed> { return kRefusal(); },
        [](atom::interrupt) {},
        [](atom::status) -> caf::result<std::string> { return kRefusal(); },
    };
  });
}

/// True once it is over; watched from the construction on.
class Watch {
 public:
  template <class Handle>
  Watch(VirtualStage& stage, const Handle& handle) : is_gone_(std::make_shared<bool>(false)) {
    const auto flag = is_gone_;
    const auto target = caf::actor_cast<caf::actor>(handle);
    watcher_ = stage.add(stage.system.spawn([flag, target](caf::event_based_actor* self) -> caf::behavior {
      self->monitor(target);
      self->set_down_handler([flag](caf::down_msg&) { *flag = true; });
      return {[](int) {}};
    }));
    stage.run_jobs();
  }
  bool is_gone() const { return *is_gone_; }

 private:
  std::shared_ptr<bool> is_gone_;
  caf::actor watcher_;  // one that nobody holds would end at once
};

}  // namespace

TEST_CASE("B111 every question that is answered with an error is logged with who asked whom for what, and counted") {
  struct Case {
    const char* line;
    std::function<void(VirtualRun&)> set;
    int code;
  };
  const std::vector<Case> cases{
      {"rollout 0: waited 0.0 s, since ",
       [](VirtualRun& run) {
         run.num_workers = 1;
         run.score = [](Trajectory& t) {
           if (t.attempt == 0) fail("the answer is an error");
           t.total_reward = 1;
         };
       },
       0},
      {"for reward (score of sample 0, question 1): ",
       [](VirtualRun& run) { run.start_buffer = spawn_refusing_buffer; }, 1},
      {"for the batch source (batch): ", [](VirtualRun& run) { run.start_buffer = spawn_refusing_buffer; }, 1},
      {"director, step 1: waited ",
       [](VirtualRun& run) {
         run.evaluate = true;
         run.evaluation = [](int64_t) -> nlohmann::json { fail("the answer is an error"); };
       },
       0},
      {"for the evaluator (evaluate): ",
       [](VirtualRun& run) {
         run.evaluate = true;
         run.evaluation = [](int64_t) -> nlohmann::json { fail("the answer is an error"); };
       },
       0},
      {"for shard 0 of 1 (load): ",
       [](VirtualRun& run) {
         run.make_work = [](int) -> std::unique_ptr<ShardWork> { fail("the answer is an error"); };
       },
       1},
      {"for shard 0 of 1 (train step): ",
       [](VirtualRun& run) { run.shard.on_train = [](int, const TrainBatch&) { fail("the answer is an error"); }; }, 1},
      {"for shard 0 of 1 (save): ",
       [](VirtualRun& run) {
         run.save_interval = 1;
         run.shard.on_save = [](int, int64_t, const StepDecision&) { fail("the answer is an error"); };
       },
       1},
      {"for shard 0 of 1 (write model): ",
       [](VirtualRun& run) { run.shard.on_write = [](const std::string&) { fail("the answer is an error"); }; }, 1},
  };
  for (const auto& one : cases) {
    CAPTURE(one.line);
    const LogCapture log;
    const auto before = num_failed_questions();
    VirtualRun run;
    one.set(run);
    REQUIRE(run.play());
    CHECK(run.code == one.code);
    CHECK(num_failed_questions() > before);
    CHECK(LogCapture::has(one.line));
    CHECK(LogCapture::has("the answer is an error"));
  }
}

TEST_CASE("B111 an error that nobody asked for is logged and counted, and its receiver lives") {
  VirtualRun run;
  run.num_workers = 1;
  run.limit = 60 * kUnit;
  run.rollout_time = [](uint64_t) { return 1000 * kUnit; };
  run.start();
  run.stage.run_jobs();
  const LogCapture log;
  const auto before = num_stray_errors();
  const caf::actor_addr addresses[] = {run.director.address(), run.buffer.address(), run.trainer.address(),
                                       run.supervisor.address()};
  for (const auto& address : addresses) {
    const auto target = caf::actor_cast<caf::actor>(caf::actor_cast<caf::strong_actor_ptr>(address));
    caf::anon_send(target, caf::make_error(ec::failed, std::string("out of the blue")));
  }
  run.stage.run_jobs();
  CHECK(num_stray_errors() == before + 4);
  for (const char* name : {"director", "buffer", "trainer", "supervisor"})
    CHECK(LogCapture::has(concat(name, ": an error message arrived: out of the blue")));
  CHECK_FALSE(run.is_over);
}

TEST_CASE("B108 an actor that waits for an answer that never comes is gone as soon as it is told to exit") {
  // Rollout waits for the reward, trainer for its shard, director for the evaluator: none of them will answer.
  VirtualRun run;
  run.limit = run.score_limit = std::chrono::hours(10'000);
  run.num_workers = 1;
  run.train_time = [](int, int64_t) { return Milliseconds(-1); };
  SUBCASE("rollout") {
    run.reward_time = [](uint64_t) { return std::chrono::hours(10'000); };
    run.start();
    run.stage.run_jobs();
    const Watch watch(run.stage, run.rollouts.at(0));
    caf::anon_send_exit(run.rollouts.at(0), caf::exit_reason::user_shutdown);
    run.stage.run_jobs();
    CHECK(watch.is_gone());
  }
  SUBCASE("trainer") {
    run.start();
    REQUIRE(run.stage.run_until([&] { return run.num_steps_trained == 1; }));
    const Watch watch(run.stage, run.trainer);
    caf::anon_send_exit(run.trainer, caf::exit_reason::user_shutdown);
    run.stage.run_jobs();
    CHECK(watch.is_gone());
    CHECK(run.is_over);
    CHECK(run.code == 1);
  }
  SUBCASE("director") {
    run.evaluate = true;
    run.start_evaluator = [](caf::actor_system& system) -> evaluator_actor {
      return system.spawn([](evaluator_actor::pointer self) -> evaluator_actor::behavior_type {
        auto promise = std::make_shared<caf::typed_response_promise<std::string>>();
        return {[=](atom::evaluate, int64_t) -> caf::result<std::string> {
          *promise = self->make_response_promise<std::string>();
          return *promise;
        }};
      });
    };
    run.start();
    run.stage.run_jobs();
    const Watch watch(run.stage, run.director);
    caf::anon_send_exit(run.director, caf::exit_reason::user_shutdown);
    run.stage.run_jobs();
    CHECK(watch.is_gone());
  }
  // And the whole system comes down: ~VirtualStage checks that nobody is left.
}

TEST_CASE("B108 B111 no actor freezes itself in an await, and every request has its error handler") {
  int num_requests = 0;
  for (const auto& entry : std::filesystem::directory_iterator(TROUPE_SOURCE_DIR "/actors")) {
    if (entry.path().extension() != ".cpp" && entry.path().extension() != ".h") continue;
    const auto text = read_file(entry.path());
    CAPTURE(entry.path().string());
    CHECK(text.find(".await(") == std::string::npos);
    for (auto at = text.find("->request("); at != std::string::npos; at = text.find("->request(", at + 1)) {
      ++num_requests;
      const auto end = text.find(";\n", text.find("caf::error&", at));
      REQUIRE(end != std::string::npos);
      const auto next = text.find("->request(", at + 1);
      CHECK((next == std::string::npos || end < next || text.find("caf::error&", at) < next));
    }
  }
  CHECK(num_requests >= 8);
}

TEST_CASE("who waits for whom can be asked while they wait, is logged where time runs out, and nothing stays listed") {
  const LogCapture log;
  {
    VirtualRun run;
    run.limit = 60 * kUnit;
    run.train_time = [](int, int64_t step) { return (step == 2 ? -1 : 1) * kUnit; };
    run.start();
    CHECK_FALSE(run.play(30 * kUnit));  // in the middle of the second step
    CHECK(who_waits().find("trainer, step 2 waits for shard 0 of 1 (train step) since ") != std::string::npos);
    REQUIRE(run.play());
    CHECK(run.code == 1);
    CHECK(LogCapture::has("who waits: trainer, step 2 waits for shard 0 of 1 (train step) since "));
  }
  CHECK(open_questions().empty());
  CHECK(who_waits() == "nobody waits for anybody");
}

}  // namespace troupe
