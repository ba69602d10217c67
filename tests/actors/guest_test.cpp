// A joined worker that the run loses patience with: one that is only slow joins anew, one whose engine hangs ends,
// since what it holds of the machine goes with its process alone. Two actor systems of this process, over loopback.
#include "actors/guest.h"

#include <caf/io/all.hpp>
#include <condition_variable>

#include "actors/gate.h"
#include "actors/model_source.h"
#include "actors/stage.h"
#include "tests/actors/support.h"
#include "tests/actors/tiny_run.h"

namespace troupe {
namespace {

using namespace actor_tests;

struct NetworkStage {
  NetworkStage() { config.use_network({0.5, 10}); }
  StageConfig config{2};
  std::optional<caf::actor_system> system;
};

/// Holds whoever steps until it is opened.
class Barrier {
 public:
  void wait() {
    std::unique_lock lock(mutex_);
    ++num_waiting_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return is_open_; });
  }
  bool wait_for_somebody() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(30), [this] { return num_waiting_ > 0; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;
  int num_waiting_ = 0;
};

/// A director that gives every worker that arrives one sample, and counts them.
director_actor spawn_one_sample_director(caf::actor_system& system, std::shared_ptr<std::atomic<int>> num_arrived) {
  return system.spawn([num_arrived](director_actor::pointer) -> director_actor::behavior_type {
    return {
        [](atom::trained, const StepReport&) { return StepDecision{}; },
        [](atom::decide) { return StepDecision{}; },
        [](atom::validate, const std::string&) { return StepDecision{}; },
        [](atom::interrupt) {},
        [](atom::status) { return std::string("{}"); },
        [num_arrived](atom::arrive, int32_t, int32_t, int64_t, const caf::strong_actor_ptr& worker) {
          ++*num_arrived;
          caf::anon_send(caf::actor_cast<rollout_actor>(worker), atom::work_v,
                         WorkOrder{0, -1, {1}, "{}", {0}, {0}, {}});
        },
        [](atom::applied, int32_t, int64_t) {},
        [](atom::generated, const SampleReport&) {},
        [](atom::failed, const SampleReport&) {},
        [](atom::finished, uint64_t) {},
        [](atom::dropped, const GroupDrop&) {},
        [](atom::batch, int64_t, const std::string&) {},
        [](atom::progress, const WorkerStatus&) {},
        [](atom::overdue, const caf::strong_actor_ptr&, const std::string&) {},
        [](atom::leave, int32_t) {},
        [](atom::overdue) {},
    };
  });
}

}  // namespace

TEST_CASE("a joined worker that is overdue joins anew where it is slow, and ends where its engine hangs") {
  bool hangs = false;
  SUBCASE("slow") { hangs = false; }
  SUBCASE("hangs") { hangs = true; }
  TinyRun run("guest");  // for its model
  const auto model = ModelSource({run.topology.model.path, true, ""}, 0).description();
  NetworkStage host, away;
  const auto num_arrived = std::make_shared<std::atomic<int>>(0);
  const auto barrier = std::make_shared<Barrier>();
  int32_t code = -1;
  std::string cause;
  {
    host.system.emplace(host.config);
    away.system.emplace(away.config);
    const auto director = spawn_one_sample_director(*host.system, num_arrived);
    GateSetup setup;
    setup.rules = {TROUPE_VERSION, "", model.fingerprint(), 10};
    setup.settings.run = "r";
    setup.settings.model_config = model.config;
    setup.settings.lost_after_s = 0.3;
    setup.text_files = model.text_files;
    setup.publisher = std::make_shared<WeightPublisher>(WeightPublisherOptions{});
    Listener listener;
    setup.observer = std::make_shared<ObserverGate>(&listener);
    setup.num_joined = std::make_shared<std::atomic<int>>(0);
    const auto gate = spawn_gate(*host.system, director, reward_actor(), std::move(setup));
    REQUIRE(!listener.lines.empty());
    const auto& line = listener.lines.front();
    const auto colon = line.find("127.0.0.1:");
    REQUIRE(colon != std::string::npos);

    GuestSetup joins;
    joins.options.host = "127.0.0.1";
    joins.options.port = std::stoi(line.substr(colon + 10));
    joins.options.num_threads = 1;
    joins.options.heartbeat_s = 0.5;
    joins.make_work = [=](int) {
      FakeWork::Hooks hooks;
      hooks.on_step = [=](Trajectory&) { barrier->wait(); };
      return std::make_unique<FakeWork>(hooks);
    };
    const auto guest = spawn_guest(*away.system, std::move(joins));
    REQUIRE(barrier->wait_for_somebody());
    CHECK(*num_arrived == 1);
    caf::anon_send(gate, atom::overdue_v, int32_t{0}, std::string("holds 1 samples"));
    if (!hangs) barrier->open();  // it looks into its mailbox and falls
    caf::scoped_actor self(*away.system);
    if (!hangs) {
      // The second arrival is the proof; then the run lets it go.
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
      while (*num_arrived < 2 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
      CHECK(*num_arrived == 2);
      caf::anon_send(guest, atom::ended_v, std::string("done"));
    }
    self->request(guest, std::chrono::seconds(30), atom::ended_v)
        .receive(
            [&](int32_t code_of_guest, std::string& cause_of_guest) {
              code = code_of_guest;
              cause = std::move(cause_of_guest);
            },
            [&](const caf::error& error) { cause = describe_error(error, *away.system); });
    barrier->open();
    caf::anon_send_exit(gate, caf::exit_reason::user_shutdown);
    caf::anon_send_exit(director, caf::exit_reason::user_shutdown);
  }
  CHECK(code == (hangs ? 1 : 0));
  CHECK_MESSAGE(
      (cause.find("rollout 0 hangs: it holds 1 samples, and did not end within 0.3 s") != std::string::npos) == hangs,
      cause);
}

TEST_CASE(
    "a rollout actor that ends while a question is open lets its thread go at once, not at the question's limit") {
  const auto num_arrived = std::make_shared<std::atomic<int>>(0), num_asked = std::make_shared<std::atomic<int>>(0);
  std::chrono::steady_clock::time_point begin;
  {
    StageConfig config(2);
    caf::actor_system system(config);
    const auto director = spawn_one_sample_director(system, num_arrived);
    const reward_actor reward = system.spawn([num_asked](reward_actor::pointer self) -> reward_actor::behavior_type {
      const auto promises = std::make_shared<std::vector<caf::typed_response_promise<int32_t>>>();
      return {[=](atom::score, const Packed&) -> caf::result<int32_t> {
        promises->push_back(self->make_response_promise<int32_t>());
        ++*num_asked;
        return promises->back();
      }};
    });
    RolloutSetup setup;
    setup.make_work = [](int) { return std::make_unique<FakeWork>(FakeWork::Hooks{}); };
    setup.board = std::make_shared<WeightBoard>(1);
    setup.board->publish(std::make_shared<FakeModel>(0));
    setup.trace = std::make_shared<Trace>(false);
    setup.score_limit = std::chrono::seconds(60);
    {
      const auto rollout = spawn_rollout(system, 0, director, reward, std::move(setup));
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
      while (*num_asked == 0 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
      CHECK(*num_asked == 1);
      begin = std::chrono::steady_clock::now();
      caf::anon_send_exit(rollout, caf::exit_reason::user_shutdown);
    }
    caf::anon_send_exit(director, caf::exit_reason::user_shutdown);
    caf::anon_send_exit(reward, caf::exit_reason::user_shutdown);
  }
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20));
}

}  // namespace troupe
