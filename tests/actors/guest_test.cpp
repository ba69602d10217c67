// A joined worker that the run loses patience with: one that is only slow joins anew, one whose engine or rule hangs
// ends, since what it holds of the machine goes with its process alone. And when a grader is known to the run. Two
// actor systems of this process, over loopback.
#include "actors/guest.h"

#include <caf/io/all.hpp>
#include <condition_variable>

#include "actors/gate.h"
#include "actors/model_source.h"
#include "actors/reward_pool.h"
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

/// A director that gives every worker that arrives one sample, once the worker has weights of `first_version`, and
/// counts them.
director_actor spawn_one_sample_director(caf::actor_system& system, std::shared_ptr<std::atomic<int>> num_arrived,
                                         int64_t first_version = -1) {
  return system.spawn([=](director_actor::pointer) -> director_actor::behavior_type {
    const auto waiting = std::make_shared<rollout_actor>();  // for its weights
    const auto give = [](const rollout_actor& worker) {
      caf::anon_send(worker, atom::work_v, WorkOrder{0, -1, {1}, "{}", {0}, {0}, {}});
    };
    return {
        [](atom::trained, const StepReport&) { return StepDecision{}; },
        [](atom::decide) { return StepDecision{}; },
        [](atom::validate, const std::string&) { return StepDecision{}; },
        [](atom::interrupt) {},
        [](atom::status) { return std::string("{}"); },
        [=](atom::arrive, int32_t, int32_t, int64_t version, const caf::strong_actor_ptr& worker) {
          ++*num_arrived;
          const auto rollout = caf::actor_cast<rollout_actor>(worker);
          if (version >= first_version)
            give(rollout);
          else
            *waiting = rollout;
        },
        [=](atom::applied, int32_t, int64_t version) {
          if (version < first_version || !*waiting) return;
          give(*waiting);
          *waiting = rollout_actor();
        },
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

/// Whether it comes true within half a minute.
bool comes_true(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

/// A run's gate, and the process of a guest that joins there.
struct Join {
  explicit Join(double patience_s) {
    host.system.emplace(host.config);
    away.system.emplace(away.config);
    setup.rules = {TROUPE_VERSION, "", model.fingerprint(), 10, {"reward"}};
    setup.settings.run = "r";
    setup.settings.model_config = model.config;
    setup.settings.lost_after_s = patience_s;
    setup.settings.score_limit_s = 600;
    setup.grader = {"r", {}, patience_s};
    setup.text_files = model.text_files;
    setup.publisher = std::make_shared<WeightPublisher>(WeightPublisherOptions{});
    setup.observer = std::make_shared<ObserverGate>(&listener);
    setup.num_joined = std::make_shared<std::atomic<int>>(0);
  }
  ~Join() {
    caf::anon_send_exit(gate, caf::exit_reason::user_shutdown);
    caf::anon_send_exit(director, caf::exit_reason::user_shutdown);
    caf::anon_send_exit(reward, caf::exit_reason::user_shutdown);
    gate = gate_actor();
    director = director_actor();
    reward = reward_actor();
  }
  guest_actor join(const std::string& role, RolloutWorkFactory make_work) {
    const auto publisher = setup.publisher;
    gate = spawn_gate(*host.system, director, reward, setup);
    REQUIRE(!listener.lines.empty());
    const auto& line = listener.lines.front();
    const auto colon = line.find("127.0.0.1:");
    REQUIRE(colon != std::string::npos);
    GuestSetup joins;
    joins.options.host = "127.0.0.1";
    joins.options.port = std::stoi(line.substr(colon + 10));
    joins.options.role = role;
    joins.options.num_threads = 1;
    joins.options.heartbeat_s = 0.5;
    joins.make_work = std::move(make_work);
    return spawn_guest(*away.system, std::move(joins));
  }
  void publish(int64_t version) const {
    auto snapshot = std::make_shared<WeightSnapshot>();
    snapshot->version = version;
    for (const auto& spec : parameter_specs(parse_model_config(model.config)))
      snapshot->tensors[spec.name] = at::zeros(spec.shape);
    setup.publisher->publish(std::move(snapshot));
  }
  /// Waits for the guest's end: exit code and cause.
  std::pair<int32_t, std::string> end_of(const guest_actor& guest) {
    std::pair<int32_t, std::string> end{-1, ""};
    caf::scoped_actor self(*away.system);
    self->request(guest, std::chrono::seconds(30), atom::ended_v)
        .receive(
            [&](int32_t code, std::string& cause) {
              end = {code, std::move(cause)};
            },
            [&](const caf::error& error) { end.second = describe_error(error, *away.system); });
    return end;
  }

  TinyRun run{"guest"};  // for its model
  ModelDescription model = ModelSource({run.topology.model.path, true, ""}, 0).description();
  Listener listener;
  GateSetup setup;
  NetworkStage host, away;
  director_actor director;
  reward_actor reward;
  gate_actor gate;
};

/// A rule that does what the test says, and waits for somebody: it is asked on the scorers' own threads.
struct HookedReward : RewardFunction {
  static inline std::function<void()> on_load;
  static inline std::function<double()> on_score;
  static inline std::atomic<int> num_alive{0};
  HookedReward() { ++num_alive; }
  ~HookedReward() override { --num_alive; }
  static RewardOptions options() {
    static const bool is_registered = [] {
      register_reward_kind("hooked", [](const RewardOptions&) -> std::unique_ptr<RewardFunction> {
        return std::make_unique<HookedReward>();
      });
      return true;
    }();
    RewardOptions reward;
    if (is_registered) reward.kind = reward.name = "hooked";
    return reward;
  }
  void load() const override { on_load(); }
  double longest_s() const override { return 20; }
  double score(const Trajectory&, const nlohmann::json&) const override { return on_score(); }
};

reward_pool_actor spawn_pool(caf::actor_system& system, std::chrono::milliseconds limit) {
  RewardPoolSetup pool;
  pool.limit = limit;
  // Nobody knows its samples; it answers all the same.
  return spawn_reward_pool(system, spawn_buffer(system, {}), supervisor_actor(), pool);
}

}  // namespace

/// Counts those that are gone.
class CountedWork : public FakeWork {
 public:
  CountedWork(Hooks hooks, std::shared_ptr<std::atomic<int>> num_gone)
      : FakeWork(std::move(hooks)), num_gone_(std::move(num_gone)) {}
  ~CountedWork() override { ++*num_gone_; }

 private:
  std::shared_ptr<std::atomic<int>> num_gone_;
};

TEST_CASE("a joined worker that is overdue joins anew where it is slow, and ends where its engine hangs") {
  bool hangs = false;
  SUBCASE("slow") { hangs = false; }
  SUBCASE("hangs") { hangs = true; }
  const auto num_arrived = std::make_shared<std::atomic<int>>(0), num_gone = std::make_shared<std::atomic<int>>(0);
  const auto barrier = std::make_shared<Barrier>();
  std::pair<int32_t, std::string> end;
  {
    Join stage(hangs ? 0.3 : 5);
    stage.director = spawn_one_sample_director(*stage.host.system, num_arrived, hangs ? 1 : -1);
    if (hangs) stage.publish(1);
    const auto guest = stage.join("rollout", [=](int) {
      FakeWork::Hooks hooks;
      hooks.on_step = [=](Trajectory&) { barrier->wait(); };
      return std::make_unique<CountedWork>(hooks, num_gone);
    });
    REQUIRE(barrier->wait_for_somebody());
    CHECK(*num_arrived == 1);
    if (hangs) {  // the engine holds the first version: the third one finds no room, and its thread waits for it
      CHECK(comes_true([&] { return stage.setup.publisher->num_applied() >= 1; }));
      stage.publish(2);
      CHECK(comes_true([&] { return stage.setup.publisher->num_applied() >= 2; }));
      stage.publish(3);
      CHECK(comes_true([&] { return stage.setup.publisher->num_serialized() >= 3; }));
    }
    caf::anon_send(stage.gate, atom::overdue_v, int32_t{0}, std::string("holds 1 samples"));
    if (!hangs) {
      barrier->open();  // it looks into its mailbox and falls
      // The second arrival is the proof; then the run lets it go.
      CHECK(comes_true([&] { return *num_arrived >= 2; }));
      CHECK(*num_arrived == 2);
      caf::anon_send(guest, atom::ended_v, std::string("done"));
    }
    end = stage.end_of(guest);
    CHECK(*num_gone == (hangs ? 0 : 2));
    barrier->open();
    // A process would go at once; here the network is still needed for what the worker says now.
    CHECK(comes_true([&] { return *num_gone == *num_arrived; }));
  }
  CHECK(end.first == (hangs ? 1 : 0));
  CHECK_MESSAGE((end.second.find("rollout 0 hangs: it holds 1 samples, and did not end within 0.3 s") !=
                 std::string::npos) == hangs,
                end.second);
}

TEST_CASE(
    "a grader is known to the run once its rules are loaded; where they wait, several samples are graded at once") {
  const auto loading = std::make_shared<Barrier>();
  const int num_threads_before = at::get_num_threads();
  std::mutex mutex;
  std::condition_variable changed;
  int num_inside = 0, num_scored = 0, num_met = 0;
  std::set<int> threads;
  constexpr int kQuestions = 4;
  HookedReward::on_load = [=] { loading->wait(); };
  HookedReward::on_score = [&] {
    std::unique_lock lock(mutex);
    threads.insert(at::get_num_threads());
    ++num_inside;
    changed.notify_all();
    num_met += changed.wait_for(lock, std::chrono::seconds(20), [&] { return num_inside == kQuestions; });
    ++num_scored;
    return 1.0;
  };
  {
    Join stage(5);
    stage.setup.grader.rewards = {HookedReward::options()};
    stage.director = spawn_one_sample_director(*stage.host.system, std::make_shared<std::atomic<int>>(0));
    const auto pool = spawn_pool(*stage.host.system, std::chrono::seconds(25));
    stage.reward = pool;
    const auto guest = stage.join("reward", nullptr);
    caf::scoped_actor self(*stage.host.system);
    const auto status = [&] {
      std::string text;
      self->request(pool, std::chrono::seconds(10), atom::status_v)
          .receive([&](const std::string& answer) { text = answer; }, [](const caf::error&) {});
      return text;
    };
    REQUIRE(loading->wait_for_somebody());
    CHECK(status() == R"({"asked":0,"graders":0,"waiting":0})");
    loading->open();
    CHECK(comes_true([&] { return status() == R"({"asked":0,"graders":1,"waiting":0})"; }));
    std::vector<decltype(self->request(reward_actor(), std::chrono::seconds(1), atom::score_v, Packed()))> answers;
    for (int i = 0; i < kQuestions; ++i)
      answers.push_back(self->request(stage.reward, std::chrono::seconds(30), atom::score_v,
                                      pack(make_trajectory(make_sample_id(0, static_cast<uint32_t>(i)), 0, 0))));
    int num_answers = 0;
    for (auto& answer : answers) answer.receive([&](int32_t) { ++num_answers; }, [](const caf::error&) {});
    CHECK(num_answers == kQuestions);
    caf::anon_send(guest, atom::ended_v, std::string("done"));
    CHECK(stage.end_of(guest).first == 0);
  }
  CHECK(num_scored == kQuestions);
  CHECK(num_met == kQuestions);
  CHECK((threads == std::set<int>{1}));  // --threads
  at::set_num_threads(num_threads_before);
}

TEST_CASE("a grader whose rule hangs is told so by the run, and its process ends") {
  const auto barrier = std::make_shared<Barrier>();
  const int num_threads_before = at::get_num_threads();
  HookedReward::on_load = [] {};
  HookedReward::on_score = [=] {
    barrier->wait();
    return 1.0;
  };
  std::pair<int32_t, std::string> end;
  {
    Join stage(0.3);
    stage.setup.grader.rewards = {HookedReward::options()};
    stage.director = spawn_one_sample_director(*stage.host.system, std::make_shared<std::atomic<int>>(0));
    stage.reward = spawn_pool(*stage.host.system, std::chrono::milliseconds(300));
    const auto guest = stage.join("reward", nullptr);
    caf::anon_send(stage.reward, atom::score_v, pack(make_trajectory(make_sample_id(0, 0), 0, 0)));
    REQUIRE(barrier->wait_for_somebody());
    end = stage.end_of(guest);
    barrier->open();
    CHECK(comes_true([] { return HookedReward::num_alive == 0; }));  // its answer needs the network
  }
  CHECK(end.first == 1);
  CHECK_MESSAGE(
      end.second.find("reward 0 hangs: it did not answer a question for 0.3 s, and did not end within 0.3 s") !=
          std::string::npos,
      end.second);
  at::set_num_threads(num_threads_before);
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
