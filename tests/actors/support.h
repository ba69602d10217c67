// A whole cast on virtual time: director, buffer, trainer and supervisor as they are; rollout, reward and shards either
// as they are around doubles of their work, or as actors that need a stated time. CAF's test coordinator runs everybody
// on the test's own thread; its clock jumps from one event to the next.
#pragma once

#include <caf/all.hpp>
#include <caf/scheduler/test_coordinator.hpp>
#include <filesystem>
#include <set>

#include "actors/buffer.h"
#include "actors/director.h"
#include "actors/packed.h"
#include "actors/question.h"
#include "actors/reward.h"
#include "actors/rollout.h"
#include "actors/supervisor.h"
#include "actors/trainer.h"
#include "base/error.h"
#include "base/file.h"
#include "tests/doctest.h"

namespace troupe::actor_tests {

using Milliseconds = std::chrono::milliseconds;
inline constexpr Milliseconds kUnit{1000};  // of virtual time

struct TestConfig : caf::actor_system_config {
  TestConfig() {
    add_message_types<caf::id_block::troupe>();
    add_error_text(*this);
    set("scheduler.policy", caf::atom("testing"));
  }
};

/// An actor system whose time is the test's.
class VirtualStage {
 public:
  VirtualStage() : coordinator(dynamic_cast<caf::scheduler::test_coordinator&>(system.scheduler())) {}
  ~VirtualStage() {
    for (const auto& weak : everybody)
      if (auto strong = caf::actor_cast<caf::strong_actor_ptr>(weak))
        caf::anon_send_exit(caf::actor_cast<caf::actor>(strong), caf::exit_reason::kill);
    everybody.clear();
    run_jobs();
    CHECK(system.registry().running() == 0);  // or the system's destructor would wait for ever
  }
  /// Remembers the actor, so that it ends with the stage whatever the test does to it.
  template <class Handle>
  Handle add(const Handle& handle) {
    everybody.push_back(caf::actor_cast<caf::weak_actor_ptr>(handle));
    return handle;
  }
  void run_jobs() {
    constexpr size_t kMost = 2'000'000;  // more without a clock's tick is an endless exchange
    REQUIRE(coordinator.run(kMost) < kMost);
  }
  Milliseconds now() const {
    return std::chrono::duration_cast<Milliseconds>(coordinator.clock().current_time.time_since_epoch());
  }
  /// Lets time pass from event to event until `done`, at most until `end`.
  bool run_until(const std::function<bool()>& done, Milliseconds end = std::chrono::hours(100)) {
    run_jobs();
    while (!done()) {
      if (now() > end || !coordinator.trigger_timeout()) return false;
      run_jobs();
    }
    return true;
  }
  /// Lets all events of the next `span` happen.
  void pass(Milliseconds span) {
    const auto end = now() + span;
    run_until([&] { return now() >= end; }, end);
  }

  TestConfig config;
  caf::actor_system system{config};
  caf::scheduler::test_coordinator& coordinator;
  std::vector<caf::weak_actor_ptr> everybody;
};

/// Weights that are only a version.
class FakeModel : public PackedModel {
 public:
  explicit FakeModel(int64_t version) : version_(version) {}
  int64_t version() const override { return version_; }
  int64_t bytes() const override { return 0; }
  at::ScalarType dtype() const override { return at::kFloat; }
  const ModelConfig& config() const override { return config_; }

 private:
  int64_t version_;
  ModelConfig config_;
};

inline Trajectory make_trajectory(uint64_t sample_id, uint32_t attempt, int64_t version) {
  Trajectory t;
  t.sample_id = sample_id;
  t.attempt = attempt;
  t.group = group_of_sample(sample_id);
  t.tokens = {1, 2, 3};
  t.prompt_length = 2;
  t.loss_mask = {0, 0, 1};
  t.log_probs = {0, 0, -1};
  t.versions = {{2, version}};
  return t;
}

inline Packed pack(const Trajectory& trajectory) { return to_packed(trajectory); }
inline Trajectory unpack(const Packed& packed) { return sample_of(packed); }

/// The engine's double: a sample a step, with the version of the newest weights.
class FakeWork : public RolloutWork {
 public:
  struct Hooks {
    std::function<void(const WorkOrder&, size_t index)> on_add;
    std::function<void(Trajectory&)> on_step;  // may throw
  };
  explicit FakeWork(Hooks hooks) : hooks_(std::move(hooks)) {}
  void set_weights(WeightBoard::Pointer weights) override { next_ = std::move(weights); }
  int64_t version() const override { return weights_ == nullptr ? -1 : weights_->version(); }
  void add(const WorkOrder& order, size_t index) override {
    if (hooks_.on_add) hooks_.on_add(order, index);
    queue_.emplace_back(order.sample_ids[index], order.attempts[index]);
  }
  std::vector<Trajectory> step() override {
    if (next_ != nullptr) weights_ = std::exchange(next_, nullptr);
    if (queue_.empty()) return {};
    const auto [id, attempt] = queue_.front();
    queue_.pop_front();
    std::vector<Trajectory> made{make_trajectory(id, attempt, version())};
    if (hooks_.on_step) hooks_.on_step(made.back());
    ++metrics_.decode_steps;
    return made;
  }
  bool idle() const override { return queue_.empty(); }
  EngineMetrics metrics() const override { return metrics_; }

 private:
  Hooks hooks_;
  WeightBoard::Pointer weights_, next_;
  std::deque<std::pair<uint64_t, uint32_t>> queue_;
  EngineMetrics metrics_;
};

/// A rank's double: publishes versions, remembers what it was given.
struct FakeShardHooks {
  std::function<void(int rank, const TrainBatch&)> on_train;  // may throw
  std::function<void(int rank, int64_t step, const StepDecision&)> on_save;
  std::function<void(const std::string& folder)> on_write;
  std::function<void(int rank, const std::string& reason)> on_abort;
};
class FakeShard : public ShardWork {
 public:
  FakeShard(int rank, std::shared_ptr<WeightBoard> board, FakeShardHooks hooks)
      : rank_(rank), board_(std::move(board)), hooks_(std::move(hooks)) {}
  nlohmann::json load() override { return nlohmann::json::object(); }
  nlohmann::json train(const TrainBatch& batch) override {
    if (hooks_.on_train) hooks_.on_train(rank_, batch);
    return {{"loss/mean", 0.5}};
  }
  nlohmann::json validate(const TrainBatch&) override { return {{"validation/loss", 1.0}}; }
  nlohmann::json publish(int64_t version) override {
    if (rank_ == 0) board_->publish(std::make_shared<FakeModel>(version));
    return nlohmann::json::object();
  }
  nlohmann::json save(int64_t step, const StepDecision& decision) override {
    if (hooks_.on_save) hooks_.on_save(rank_, step, decision);
    return nlohmann::json::object();
  }
  nlohmann::json write_model(const std::string& folder) override {
    if (hooks_.on_write && rank_ == 0) hooks_.on_write(folder);
    return nlohmann::json::object();
  }
  void abort(const std::string& reason) override {
    if (hooks_.on_abort) hooks_.on_abort(rank_, reason);
  }

 private:
  int rank_;
  std::shared_ptr<WeightBoard> board_;
  FakeShardHooks hooks_;
};

/// A run folder that goes with the test.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(const std::string& name)
      : path(std::filesystem::temp_directory_path() / concat("troupe_", name, "_", ::getpid())) {
    std::filesystem::remove_all(path);
    std::filesystem::create_directories(path);
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path); }
  const std::filesystem::path path;
};

inline std::vector<nlohmann::json> read_json_lines(const std::filesystem::path& path) {
  std::vector<nlohmann::json> lines;
  std::istringstream text(std::filesystem::exists(path) ? read_file(path) : std::string());
  for (std::string line; std::getline(text, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

/// What became of every sample by the journal: "trained", or the reason why not. Fails where one stands there twice.
inline std::map<uint64_t, std::string> read_fates(const std::filesystem::path& journal) {
  std::map<uint64_t, std::string> fates;
  const auto note = [&](const nlohmann::json& sample, const std::string& fate) {
    const auto id = sample.at("id").get<uint64_t>();
    CAPTURE(id);
    CHECK(fates.try_emplace(id, fate).second);
  };
  for (const auto& line : read_json_lines(journal)) {
    for (const auto& sample : line.at("samples")) note(sample, "trained");
    for (const auto& sample : line.at("given_up")) note(sample, "given up: " + sample.at("reason").get<std::string>());
    for (const auto& group : line.at("dropped")) {
      for (const auto& sample : group.at("samples")) note(sample, "dropped: " + group.at("reason").get<std::string>());
      for (const auto& sample : group.at("given_up"))
        note(sample, "given up: " + sample.at("reason").get<std::string>());
    }
  }
  return fates;
}

}  // namespace troupe::actor_tests
