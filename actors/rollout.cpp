#include "actors/rollout.h"

#include <deque>

#include "actors/packed.h"
#include "actors/question.h"
#include "actors/unfinished.h"

namespace troupe {
namespace {

class RolloutState {
 public:
  using Pointer = rollout_actor::stateful_pointer<RolloutState>;
  static constexpr const char* name = "rollout";

  explicit RolloutState(Pointer self) : self_(self) {}
  /// The clock would hold the actor until the last of its questions had timed out, and with it this thread: the process
  /// could not end before.
  ~RolloutState() { self_->clock().cancel_timeouts(self_); }

  rollout_actor::behavior_type start(int worker, director_actor director, reward_actor reward, RolloutSetup setup) {
    worker_ = worker;
    role_ = concat("rollout ", worker);
    director_ = std::move(director);
    reward_ = std::move(reward);
    setup_ = std::move(setup);
    work_ = setup_.make_work(worker);
    if (auto newest = setup_.board->latest()) {
      work_->set_weights(std::move(newest));
      work_->step();  // applies them
    }
    acknowledged_ = work_->version();
    caf::anon_send(director_, atom::arrive_v, int32_t{worker}, int32_t{setup_.credit}, acknowledged_,
                   caf::actor_cast<caf::strong_actor_ptr>(self_));
    return {
        [this](atom::work, const WorkOrder& order) { take(order); },
        [this](atom::weights, int64_t version) { update(version); },
        [this](atom::arrive, const caf::strong_actor_ptr& reward) { replace_reward(reward); },
        [this](atom::snapshot) { return snapshot(); },
        [this](atom::next) { step(); },
        [this](atom::score, uint64_t sample_id) { ask_score(sample_id); },
    };
  }

 private:
  struct Unscored {
    uint32_t attempt = 0;
    Packed packed;
    int num_asked = 0;
    bool asking = false;
  };

  void take(const WorkOrder& order) {
    for (size_t i = 0; i < order.sample_ids.size(); ++i) {
      try {
        if (i < order.so_far.size() && !order.so_far[i].empty()) {
          auto made = unpack_trajectory(std::as_bytes(std::span(order.so_far[i])));
          if (!is_unfinished(made)) {  // only its score was missing
            made.attempt = order.attempts[i];
            deliver(made);
            continue;
          }
        }
        work_->add(order, i);
      } catch (const Error& error) {  // this prompt cannot be served; the worker is sound
        report(order.sample_ids[i], order.attempts[i], error.what());
      }
    }
    schedule();
  }

  Packed snapshot() const {
    UnfinishedSamples samples;
    for (const auto& trajectory : work_->unfinished()) samples[trajectory.sample_id] = to_packed(trajectory).bytes;
    for (const auto& [id, unscored] : unscored_) samples[id] = unscored.packed.bytes;
    return {pack_unfinished(samples)};
  }

  void update(int64_t version) {
    // In another process the news may be here before the weights: whoever brings them tells it again.
    auto newest = setup_.board->latest();
    if (newest == nullptr || version <= work_->version() || newest->version() <= work_->version()) return;
    work_->set_weights(std::move(newest));
    schedule();
  }

  void schedule() {
    if (scheduled_) return;
    scheduled_ = true;
    self_->send(self_, atom::next_v);
  }

  void step() {
    scheduled_ = false;
    std::vector<Trajectory> finished;
    {
      Trace::Span busy(*setup_.trace, role_, "engine step");
      finished = work_->step();
    }
    if (work_->version() != acknowledged_) {
      acknowledged_ = work_->version();
      caf::anon_send(director_, atom::applied_v, int32_t{worker_}, acknowledged_);
    }
    const auto now = self_->clock().now();
    if (!finished.empty() || now - reported_ > std::chrono::seconds(1)) {
      reported_ = now;
      tell_progress();
    }
    for (auto& trajectory : finished) deliver(trajectory);
    if (!work_->idle()) schedule();
  }

  void deliver(Trajectory& trajectory) {
    if (trajectory.finish_reason == FinishReason::kError) {
      report(trajectory.sample_id, trajectory.attempt,
             trajectory.completion_text.empty() ? "generation failed" : trajectory.completion_text);
      return;
    }
    caf::anon_send(director_, atom::generated_v, SampleReport{worker_, trajectory.sample_id, trajectory.attempt, {}});
    auto& unscored = unscored_[trajectory.sample_id];
    end_question(unscored);  // of an earlier attempt: its answer will not be looked at
    unscored = {trajectory.attempt, to_packed(trajectory), 0, false};
    ask_score(trajectory.sample_id);
  }

  void ask_score(uint64_t id) {
    const auto found = unscored_.find(id);
    if (found == unscored_.end() || found->second.asking) return;
    if (num_asking_ >= setup_.max_scores_asked) {
      waiting_.push_back(id);
      return;
    }
    found->second.asking = true;
    ++num_asking_;
    const auto number = ++found->second.num_asked;
    const auto attempt = found->second.attempt;
    const Question question(*self_, role_, "reward", concat("score of sample ", id, ", question ", number));
    const auto asked = caf::actor_cast<caf::strong_actor_ptr>(reward_);
    self_->request(reward_, setup_.score_limit, atom::score_v, found->second.packed)
        .then([this, id](int32_t) { settle(id); },
              [this, id, attempt, number, question, asked](const caf::error& error) {
                const auto text = question.failed(*self_, error);
                if (is_timeout(error)) caf::anon_send(director_, atom::overdue_v, asked, text);
                const auto found = unscored_.find(id);
                if (found == unscored_.end() || found->second.attempt != attempt || found->second.num_asked != number)
                  return;  // answered, or asked anew, meanwhile
                score_failed(id, found->second, text, is_receiver_gone(error) || is_timeout(error));
              });
  }

  /// The buffer has it, or it is given up.
  void settle(uint64_t id) {
    const auto found = unscored_.find(id);
    if (found == unscored_.end()) return;
    end_question(found->second);
    unscored_.erase(found);
    ask_next();
  }

  void end_question(Unscored& unscored) {
    num_asking_ -= unscored.asking;
    unscored.asking = false;
  }

  void ask_next() {
    while (!waiting_.empty() && num_asking_ < setup_.max_scores_asked) {
      const auto id = waiting_.front();
      waiting_.pop_front();
      ask_score(id);
    }
  }

  /// `is_lost`: the one who was asked is dead or will be; its successor is asked when it comes.
  void score_failed(uint64_t id, Unscored& unscored, const std::string& why, bool is_lost) {
    end_question(unscored);
    if (unscored.num_asked >= setup_.max_score_attempts) {
      report(id, unscored.attempt, why);
      settle(id);
    } else if (!is_lost) {
      self_->delayed_send(self_, std::chrono::milliseconds(100) * (1 << unscored.num_asked), atom::score_v, id);
    }
  }

  void replace_reward(const caf::strong_actor_ptr& reward) {
    reward_ = caf::actor_cast<reward_actor>(reward);
    // What the old one was asked is lost; should it answer all the same, the buffer counts once.
    waiting_.clear();
    for (auto& [id, unscored] : unscored_) {
      end_question(unscored);
      caf::anon_send(rollout_actor{self_}, atom::score_v, uint64_t{id});
    }
  }

  void report(uint64_t id, uint32_t attempt, const std::string& failure) {
    caf::anon_send(director_, atom::failed_v, SampleReport{worker_, id, attempt, failure});
  }

  void tell_progress() {
    const auto m = work_->metrics();
    caf::anon_send(director_, atom::progress_v,
                   WorkerStatus{worker_, work_->version(), m.decode_steps, m.decoded_tokens, m.prefill_tokens,
                                m.prefill_tokens_saved, m.preemptions, m.recomputed_tokens, m.weight_updates, m.busy_s,
                                m.prefill_s, m.decode_s});
  }

  Pointer self_;
  int32_t worker_ = 0;
  std::string role_;
  director_actor director_;
  reward_actor reward_;
  RolloutSetup setup_;
  std::unique_ptr<RolloutWork> work_;
  int64_t acknowledged_ = -1;
  bool scheduled_ = false;
  Question::Time reported_{};
  std::map<uint64_t, Unscored> unscored_;
  int num_asking_ = 0;            // questions that the reward actor has not answered
  std::deque<uint64_t> waiting_;  // samples to be asked about once there are fewer
};

}  // namespace

rollout_actor spawn_rollout(caf::actor_system& system, int worker, director_actor director, reward_actor reward,
                            RolloutSetup setup) {
  const bool detached = setup.detached;
  return spawn_worker<rollout_actor, RolloutState>(detached, system, worker, std::move(director), std::move(reward),
                                                   std::move(setup));
}

}  // namespace troupe
