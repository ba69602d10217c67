#include "rollout/turns.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <thread>

#include "base/error.h"

namespace troupe {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kNumThreads = 8;
constexpr std::chrono::milliseconds kMoment{10};

/// A turn on its way through the environment.
struct Visit {
  Trajectory trajectory;
  Turn turn;
  TurnAnswer answer;
  std::string failure;
  Clock::time_point limit;
  bool is_late = false;  // its sample is given up; nobody waits for the answer any more
};

}  // namespace

/// Shared with the threads, which may outlive the engine: an environment that never comes back cannot be stopped.
struct TurnEngine::Desk {
  std::mutex mutex;
  std::condition_variable changed;
  std::shared_ptr<const Environment> environment;
  double limit_s = 0;
  std::deque<std::shared_ptr<Visit>> waiting, finished;
  std::list<std::shared_ptr<Visit>> under_way;
  size_t num_threads = 0;
  bool stop = false;

  static void work(const std::shared_ptr<Desk>& self) {
    std::unique_lock lock(self->mutex);
    for (;;) {
      self->changed.wait(lock, [&] { return self->stop || !self->waiting.empty(); });
      if (self->stop) return;
      const auto visit = self->waiting.front();
      self->waiting.pop_front();
      visit->limit =
          Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(self->limit_s));
      self->under_way.push_back(visit);
      lock.unlock();
      TurnAnswer answer;
      std::string failure;
      try {
        answer = self->environment->step(visit->turn);
        if (!std::isfinite(answer.reward)) failure = concat("the reward is ", answer.reward);
      } catch (const std::exception& error) {
        failure = error.what();
        if (failure.empty()) failure = "an exception without a text";
      } catch (...) {
        failure = "an exception of an unknown kind";
      }
      lock.lock();
      std::erase(self->under_way, visit);
      if (visit->is_late) continue;
      visit->answer = std::move(answer);
      visit->failure = std::move(failure);
      self->finished.push_back(visit);
      self->changed.notify_all();
    }
  }

  void add(std::shared_ptr<Visit> visit, const std::shared_ptr<Desk>& self) {
    const std::scoped_lock lock(mutex);
    waiting.push_back(std::move(visit));
    if (num_threads < kNumThreads && waiting.size() + under_way.size() > num_threads) {
      ++num_threads;
      std::thread(&Desk::work, self).detach();
    }
    changed.notify_all();
  }

  /// What is finished or over its limit. Where every thread is with a late one, nobody will come for those that wait.
  std::deque<std::shared_ptr<Visit>> take(bool may_wait) {
    std::unique_lock lock(mutex);
    if (may_wait) changed.wait_for(lock, kMoment, [&] { return !finished.empty(); });
    const auto now = Clock::now();
    size_t num_late = 0;
    auto taken = std::exchange(finished, {});
    for (const auto& visit : under_way) {
      if (!visit->is_late && now >= visit->limit) {
        visit->is_late = true;
        auto copy = std::make_shared<Visit>(*visit);  // the thread still reads the turn
        copy->failure = concat("no answer within ", limit_s, " s");
        taken.push_back(std::move(copy));
      }
      num_late += visit->is_late;
    }
    if (num_late == kNumThreads) {
      for (auto& visit : waiting) {
        visit->failure = concat(num_late, " answers are overdue");
        taken.push_back(std::move(visit));
      }
      waiting.clear();
    }
    return taken;
  }
};

TurnEngine::TurnEngine(ModelConfig config, EngineOptions options, const Tokenizer* tokenizer, const TurnSetup& setup)
    : engine_(std::move(config), options, tokenizer),
      options_(setup.environment),
      max_context_length_(options.max_context_length) {
  const auto environment = make_environment(options_);
  if (environment == nullptr) return;
  require(tokenizer != nullptr, "an environment needs a tokenizer");
  text_ = std::make_unique<TurnText>(*tokenizer, setup.chat_template, setup.tokenizer_config);
  environment->load();
  desk_ = std::make_shared<Desk>();
  desk_->environment = environment;
  desk_->limit_s = std::max(options_.timeout_s, environment->longest_s());
}

TurnEngine::~TurnEngine() { drain(); }

size_t TurnEngine::drain() {
  auto count = engine_.drain().size() + static_cast<size_t>(num_away_);
  num_away_ = 0;
  sampling_.clear();
  if (desk_ != nullptr) {
    const auto environment = desk_->environment;
    const auto limit_s = desk_->limit_s;
    {
      const std::scoped_lock lock(desk_->mutex);
      desk_->stop = true;
      desk_->changed.notify_all();
    }
    desk_ = std::make_shared<Desk>();
    desk_->environment = environment;
    desk_->limit_s = limit_s;
  }
  return count;
}

void TurnEngine::add(GenerationRequest request) {
  if (desk_ != nullptr) sampling_[request.sample_id] = request.sampling;
  engine_.add(std::move(request));
}

std::vector<Trajectory> TurnEngine::step() {
  auto ended = engine_.step();
  if (desk_ == nullptr) return ended;
  std::vector<Trajectory> finished;
  for (auto& trajectory : ended) {
    // Cut off in the middle of a turn: there is nothing to answer.
    if (trajectory.finish_reason == FinishReason::kLength) {
      finished.push_back(std::move(trajectory));
    } else {
      ask(std::move(trajectory));
    }
  }
  for (auto& visit : desk_->take(num_away_ > 0 && engine_.idle())) {
    --num_away_;
    auto& trajectory = visit->trajectory;
    if (visit->failure.empty()) {
      try {
        if (!go_on(trajectory, visit->answer)) continue;
      } catch (const std::exception& error) {
        visit->failure = error.what();
      }
    }
    if (!visit->failure.empty()) {
      trajectory.finish_reason = FinishReason::kError;
      trajectory.completion_text = concat("environment, turn ", visit->turn.number, ": ", visit->failure);
    }
    finished.push_back(std::move(trajectory));
  }
  for (const auto& trajectory : finished) sampling_.erase(trajectory.sample_id);
  return finished;
}

void TurnEngine::ask(Trajectory trajectory) {
  auto visit = std::make_shared<Visit>();
  visit->turn = {trajectory.sample_id, trajectory.attempt, static_cast<int>(trajectory.num_turns),
                 trajectory.completion_text, nlohmann::json::parse(trajectory.metadata_json, nullptr, false)};
  visit->trajectory = std::move(trajectory);
  ++num_away_;
  desk_->add(std::move(visit), desk_);
}

std::vector<Trajectory> TurnEngine::unfinished() const {
  auto all = engine_.unfinished();
  std::erase_if(all, [](const Trajectory& trajectory) { return trajectory.num_turns > 1; });
  return all;
}

bool TurnEngine::go_on(Trajectory& trajectory, const TurnAnswer& answer) {
  trajectory.environment_reward = trajectory.environment_reward.value_or(0) + answer.reward;
  if (answer.done) {
    trajectory.finish_reason = FinishReason::kEnvironment;
    return true;
  }
  if (static_cast<int>(trajectory.num_turns) >= options_.max_turns) {
    trajectory.finish_reason = FinishReason::kLength;
    return true;
  }
  auto tokens = trajectory.tokens;
  const auto reply = text_->tokens(tokens.back(), answer.messages);
  require(!reply.empty(), "the answer holds no text, and says not that the episode is done");
  tokens.insert(tokens.end(), reply.begin(), reply.end());
  if (static_cast<int64_t>(tokens.size()) >= max_context_length_) {  // no room for another turn
    trajectory.finish_reason = FinishReason::kLength;
    return true;
  }
  GenerationRequest request{trajectory.sample_id, trajectory.attempt, std::move(tokens),
                            sampling_.at(trajectory.sample_id), trajectory.metadata_json};
  request.turns_before = std::make_shared<const Trajectory>(trajectory);
  engine_.add(std::move(request));
  return false;
}

}  // namespace troupe
