// Runs every rule on a sample within its time limit.
//
//   score() ──task──> one thread a rule ──value or reason──> score()      waits at most timeout_s
//
// A rule that is late cannot be stopped: its thread is left to end by itself and a new one takes its place. While
// kMostLostThreads of them are still at it the rule counts as broken, and every further sample fails at once with that
// reason.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "rollout/reward.h"

namespace troupe {
namespace {

constexpr size_t kMostLostThreads = 8;

/// A value, or why there is none.
struct Answer {
  double value = 0;
  std::string failure;
};

Answer call(const RewardFunction& function, const Trajectory& trajectory, const nlohmann::json& metadata) {
  Answer answer;
  try {
    answer.value = function.score(trajectory, metadata);
    if (!std::isfinite(answer.value)) answer.failure = concat("the value is ", answer.value);
  } catch (const std::exception& error) {
    answer.failure = error.what();
    if (answer.failure.empty()) answer.failure = "an exception without a text";
  } catch (...) {
    answer.failure = "an exception of an unknown kind";
  }
  return answer;
}

/// One thread that runs one rule; shared with that thread, which may outlive the rest.
struct Runner {
  std::mutex mutex;
  std::condition_variable changed;
  const std::shared_ptr<const RewardFunction> function;
  std::optional<std::pair<Trajectory, nlohmann::json>> task;
  bool done = false, stop = false, ended = false;
  Answer answer;

  explicit Runner(std::shared_ptr<const RewardFunction> rule) : function(std::move(rule)) {}

  static void loop(const std::shared_ptr<Runner>& self) {
    std::unique_lock lock(self->mutex);
    for (;;) {
      self->changed.wait(lock, [&] { return self->stop || (self->task && !self->done); });
      if (self->stop) {
        self->ended = true;
        return;
      }
      const auto task = std::move(*self->task);
      lock.unlock();
      auto answer = call(*self->function, task.first, task.second);
      lock.lock();
      self->answer = std::move(answer);
      self->done = true;
      self->changed.notify_all();
    }
  }
};

class TimedRule {
 public:
  explicit TimedRule(const RewardOptions& options) : options_(options), function_(make_reward_function(options)) {}
  ~TimedRule() {
    if (runner_ == nullptr) return;
    {
      std::scoped_lock lock(runner_->mutex);
      runner_->stop = true;
      runner_->changed.notify_all();
    }
    thread_.join();
  }

  const RewardOptions& options() const { return options_; }
  void load() { function_->load(); }

  RewardValue score(const Trajectory& trajectory, const nlohmann::json& metadata) {
    RewardValue result{options_.name, std::nullopt, ""};
    if (function_->longest_s() > 0) {
      Answer answer = call(*function_, trajectory, metadata);
      result.failure = std::move(answer.failure);
      if (result.failure.empty()) result.value = answer.value;
      return result;
    }
    std::erase_if(lost_, [](const auto& runner) {
      const std::scoped_lock lock(runner->mutex);
      return runner->ended;
    });
    if (lost_.size() >= kMostLostThreads) {
      result.failure =
          concat(lost_.size(), " calls went over the limit of ", options_.timeout_s, " s and have not come back");
      return result;
    }
    if (runner_ == nullptr) {
      runner_ = std::make_shared<Runner>(function_);
      thread_ = std::thread(&Runner::loop, runner_);
    }
    std::unique_lock lock(runner_->mutex);
    runner_->task.emplace(trajectory, metadata);
    runner_->done = false;
    runner_->changed.notify_all();
    if (!runner_->changed.wait_for(lock, std::chrono::duration<double>(options_.timeout_s),
                                   [&] { return runner_->done; })) {
      result.failure = concat("time limit of ", options_.timeout_s, " s");
      runner_->stop = true;  // should it ever come back, it ends
      lock.unlock();
      thread_.detach();
      lost_.push_back(std::move(runner_));
      return result;
    }
    runner_->task.reset();
    result.failure = runner_->answer.failure;
    if (result.failure.empty()) result.value = runner_->answer.value;
    return result;
  }

 private:
  RewardOptions options_;
  std::shared_ptr<const RewardFunction> function_;
  std::shared_ptr<Runner> runner_;
  std::thread thread_;
  std::vector<std::shared_ptr<Runner>> lost_;  // that have not come back
};

}  // namespace

struct RewardSet::Implementation {
  std::vector<std::unique_ptr<TimedRule>> rules;
  std::atomic<int64_t> num_failures{0};
};

RewardSet::RewardSet(std::vector<RewardOptions> options) : implementation_(std::make_unique<Implementation>()) {
  for (const auto& rule : options) implementation_->rules.push_back(std::make_unique<TimedRule>(rule));
  for (const auto& rule : implementation_->rules) rule->load();
}
RewardSet::~RewardSet() = default;

void RewardSet::score(Trajectory& trajectory) {
  trajectory.rewards.clear();
  trajectory.total_reward.reset();
  const auto metadata = trajectory.metadata_json.empty()
                            ? nlohmann::json::object()
                            : nlohmann::json::parse(trajectory.metadata_json, nullptr, false);
  double total = 0;
  bool any = false;
  for (auto& rule : implementation_->rules) {
    RewardValue value = metadata.is_object() ? rule->score(trajectory, metadata)
                                             : RewardValue{rule->options().name, std::nullopt,
                                                           "the sample's metadata is not a JSON object"};
    if (value.value) {
      total += rule->options().weight * *value.value;
      any |= rule->options().weight != 0;  // what is only watched makes no reward
    } else {
      ++implementation_->num_failures;
    }
    trajectory.rewards.push_back(std::move(value));
  }
  if (any && std::isfinite(total)) trajectory.total_reward = total;
}

int64_t RewardSet::num_failures() const { return implementation_->num_failures; }

double longest_score_s(const std::vector<RewardOptions>& options) {
  double sum = 0;
  for (const auto& reward : options) sum += std::max(reward.timeout_s, make_reward_function(reward)->longest_s());
  return sum;
}

int num_parallel_scores(const std::vector<RewardOptions>& options) {
  constexpr int kSeveral = 8;
  const bool any_waits = std::any_of(options.begin(), options.end(), [](const RewardOptions& reward) {
    return make_reward_function(reward)->longest_s() > 0;
  });
  return any_waits ? kSeveral : 1;
}

void score_all(const std::vector<RewardOptions>& options, std::vector<Trajectory>& trajectories) {
  std::atomic<size_t> next{0};
  const auto work = [&](RewardSet& rules) {
    for (auto i = next++; i < trajectories.size(); i = next++) rules.score(trajectories[i]);
  };
  // Made here, one after the other: what cannot be loaded is thrown to the caller.
  std::vector<std::unique_ptr<RewardSet>> sets;
  for (int i = 0; i < num_parallel_scores(options); ++i) sets.push_back(std::make_unique<RewardSet>(options));
  std::vector<std::thread> threads;
  for (size_t i = 1; i < sets.size(); ++i) threads.emplace_back([&, i] { work(*sets[i]); });
  work(*sets[0]);
  for (auto& thread : threads) thread.join();
}

}  // namespace troupe
