#include "actors/reward.h"

#include <atomic>
#include <cmath>

#include "actors/packed.h"
#include "actors/spawn.h"
#include "base/error.h"

namespace troupe {
namespace {

/// What one sample does to the rules is that sample's failure; the actor goes on.
class Scorer {
 public:
  explicit Scorer(const ScoreFactory& make_score) : score_(make_score()) {}

  /// The sample with its rewards.
  Packed score(const Packed& packed) {
    auto trajectory = sample_of(packed);
    const auto id = trajectory.sample_id;
    const auto attempt = trajectory.attempt;
    score_(trajectory);
    require(trajectory.sample_id == id && trajectory.attempt == attempt, "the answer is for sample ",
            trajectory.sample_id, ", attempt ", trajectory.attempt, ", not ", id, ", attempt ", attempt);
    require(!trajectory.total_reward || std::isfinite(*trajectory.total_reward), "the total reward of sample ", id,
            " is not finite");
    tell_failures(trajectory);
    return to_packed(trajectory);
  }

 private:
  /// The first, second, fourth, ... of each function, so that a dead one does not fill the log.
  void tell_failures(const Trajectory& trajectory) {
    for (const auto& reward : trajectory.rewards) {
      if (reward.value) continue;
      const auto count = ++num_failures_[reward.name];
      if ((count & (count - 1)) == 0)
        log::warning("reward ", reward.name, ": no value for sample ", trajectory.sample_id, ": ", reward.failure,
                     count > 1 ? concat(" (", count, " failures so far)") : std::string());
    }
  }

  ScoreFunction score_;
  std::map<std::string, int64_t> num_failures_;
};

class RewardState {
 public:
  using Pointer = reward_actor::stateful_pointer<RewardState>;
  static constexpr const char* name = "reward";

  explicit RewardState(Pointer self) : self_(self) {}

  reward_actor::behavior_type start(sample_store_actor next, RewardSetup setup) {
    next_ = std::move(next);
    trace_ = std::move(setup.trace);
    role_ = std::move(setup.role);
    scorer_.emplace(setup.make_score);
    return {[this](atom::score, const Packed& packed) { return score(packed); }};
  }

 private:
  caf::result<int32_t> score(const Packed& packed) {
    Packed scored;
    try {
      Trace::Span busy(*trace_, role_, "score");
      scored = scorer_->score(packed);
    } catch (const std::exception& error) {
      return caf::make_error(ec::failed, std::string("reward: ") + error.what());
    }
    return self_->delegate(next_, atom::store_v, std::move(scored));
  }

  Pointer self_;
  sample_store_actor next_;
  std::shared_ptr<Trace> trace_;
  std::string role_;
  std::optional<Scorer> scorer_;
};

/// Hands each sample to the next of several scorers; one that falls takes the others and this one with it.
class RewardDeskState {
 public:
  using Pointer = reward_actor::stateful_pointer<RewardDeskState>;
  static constexpr const char* name = "reward";

  explicit RewardDeskState(Pointer self) : self_(self) {}

  reward_actor::behavior_type start(sample_store_actor next, RewardSetup setup) {
    for (int i = 0; i < setup.num_scorers; ++i) {
      setup.role = concat("reward ", i);
      scorers_.push_back(spawn_worker<reward_actor, RewardState>(setup.detached, self_->system(), next, setup));
      self_->link_to(scorers_.back());
    }
    return {[this](atom::score, const Packed& packed) {
      return self_->delegate(scorers_[next_++ % scorers_.size()], atom::score_v, packed);
    }};
  }

 private:
  Pointer self_;
  std::vector<reward_actor> scorers_;
  size_t next_ = 0;
};

class GraderState {
 public:
  using Pointer = grader_actor::stateful_pointer<GraderState>;
  static constexpr const char* name = "grader";

  explicit GraderState(Pointer) {}

  grader_actor::behavior_type start(RewardSetup setup) {
    scorer_.emplace(setup.make_score);
    if (setup.on_ready) setup.on_ready();
    return {[this](atom::score, const Packed& packed) -> caf::result<Packed> {
      try {
        return scorer_->score(packed);
      } catch (const std::exception& error) {
        return caf::make_error(ec::failed, std::string("reward: ") + error.what());
      }
    }};
  }

 private:
  std::optional<Scorer> scorer_;
};

/// As the desk of the reward actor, but one that waits for its scorers when it ends: whoever watches it learns whether
/// one of them hangs.
class GraderDeskState {
 public:
  using Pointer = grader_actor::stateful_pointer<GraderDeskState>;
  static constexpr const char* name = "grader";

  explicit GraderDeskState(Pointer self) : self_(self) {}

  grader_actor::behavior_type start(RewardSetup setup) {
    self_->set_exit_handler([this](caf::exit_msg& exit) { end(exit.reason); });
    self_->set_down_handler([this](caf::down_msg& down) {
      std::erase_if(scorers_, [&](const auto& scorer) { return scorer.address() == down.source; });
      end(down.reason);
    });
    const auto num_loading = std::make_shared<std::atomic<int>>(setup.num_scorers);
    auto one = setup;
    one.on_ready = [num_loading, on_ready = setup.on_ready] {
      if (--*num_loading == 0 && on_ready) on_ready();
    };
    for (int i = 0; i < setup.num_scorers; ++i) {
      scorers_.push_back(spawn_worker<grader_actor, GraderState>(setup.detached, self_->system(), one));
      self_->monitor(scorers_.back());
    }
    return {[this](atom::score, const Packed& packed) -> caf::result<Packed> {
      if (is_ending_ || scorers_.empty()) return caf::make_error(ec::failed, std::string("reward: the grader ends"));
      return self_->delegate(scorers_[next_++ % scorers_.size()], atom::score_v, packed);
    }};
  }

 private:
  void end(const caf::error& reason) {
    if (!std::exchange(is_ending_, true)) {
      reason_ = reason;
      for (const auto& scorer : scorers_)
        caf::anon_send_exit(caf::actor_cast<caf::actor>(scorer), caf::exit_reason::user_shutdown);
    }
    if (scorers_.empty()) self_->quit(reason_);
  }

  Pointer self_;
  std::vector<grader_actor> scorers_;
  size_t next_ = 0;
  bool is_ending_ = false;
  caf::error reason_;
};

}  // namespace

reward_actor spawn_reward(caf::actor_system& system, sample_store_actor next, RewardSetup setup) {
  if (setup.num_scorers > 1)
    return spawn_state<reward_actor, RewardDeskState>(system, std::move(next), std::move(setup));
  const bool detached = setup.detached;
  return spawn_worker<reward_actor, RewardState>(detached, system, std::move(next), std::move(setup));
}

grader_actor spawn_grader(caf::actor_system& system, RewardSetup setup) {
  if (setup.num_scorers > 1) return spawn_state<grader_actor, GraderDeskState>(system, std::move(setup));
  const bool detached = setup.detached;
  return spawn_worker<grader_actor, GraderState>(detached, system, std::move(setup));
}

}  // namespace troupe
