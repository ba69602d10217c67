#include "actors/reward_pool.h"

#include <deque>

#include <nlohmann/json.hpp>

#include "actors/packed.h"
#include "actors/question.h"
#include "base/error.h"
#include "base/trajectory.h"

namespace troupe {
namespace {

class RewardPoolState {
 public:
  using Pointer = reward_pool_actor::stateful_pointer<RewardPoolState>;
  static constexpr const char* name = "reward";

  explicit RewardPoolState(Pointer self) : self_(self) {}

  reward_pool_actor::behavior_type start(sample_store_actor next, supervisor_actor supervisor, RewardPoolSetup setup) {
    next_ = std::move(next);
    supervisor_ = std::move(supervisor);
    setup_ = setup;
    alone_since_ = self_->clock().now();
    self_->set_down_handler([this](const caf::down_msg& down) { gone(down.source); });
    self_->delayed_send(self_, look_interval(), atom::overdue_v);
    return {
        [this](atom::score, const Packed& packed) { return score(packed); },
        [this](atom::store, const Packed& packed) { return score(packed); },
        [this](atom::arrive, const caf::strong_actor_ptr& grader, const caf::strong_actor_ptr& guest) {
          arrive(caf::actor_cast<grader_actor>(grader), caf::actor_cast<guest_actor>(guest));
        },
        [this](atom::status) { return status(); },
        [this](atom::overdue) { look_for_anybody(); },
    };
  }

 private:
  struct Job {
    caf::typed_response_promise<int32_t> promise;
    Packed packed;
    int num_attempts = 0;
    caf::actor_addr grader;  // who has it; none: it waits
  };
  struct Grader {
    grader_actor handle;
    guest_actor guest;
    int number = 0;     // for people
    int num_asked = 0;  // questions that it has not answered
  };

  caf::result<int32_t> score(const Packed& packed) {
    auto promise = self_->template make_response_promise<int32_t>();
    const auto id = next_job_++;
    jobs_[id] = {promise, packed, 0, {}};
    if (waiting_.empty() && graders_.empty()) alone_since_ = self_->clock().now();
    waiting_.push_back(id);
    pump();
    return promise;
  }

  void arrive(const grader_actor& grader, const guest_actor& guest) {
    if (graders_.contains(grader.address())) return;
    self_->monitor(grader);
    graders_[grader.address()] = {grader, guest, num_arrived_++, 0};
    pump();
  }

  std::string status() const {
    int64_t num_asked = 0;
    for (const auto& [address, grader] : graders_) num_asked += grader.num_asked;
    return nlohmann::json{{"graders", graders_.size()}, {"asked", num_asked}, {"waiting", waiting_.size()}}.dump();
  }

  /// What it was asked goes to others.
  void gone(const caf::actor_addr& address) {
    if (graders_.erase(address) == 0) return;
    if (graders_.empty()) alone_since_ = self_->clock().now();
    std::vector<uint64_t> lost;
    for (const auto& [id, job] : jobs_)
      if (job.grader == address) lost.push_back(id);
    for (const auto id : lost) retry(id, "the grader fell");
    pump();
  }

  void retry(uint64_t id, const std::string& why) {
    auto& job = jobs_.at(id);
    job.grader = {};
    if (job.num_attempts >= setup_.max_attempts) {
      job.promise.deliver(caf::make_error(ec::failed, concat(setup_.role, ": ", why, " (attempt ", job.num_attempts,
                                                             " of ", setup_.max_attempts, ")")));
      jobs_.erase(id);
    } else {
      waiting_.push_front(id);
    }
  }

  Grader* choose() {
    Grader* best = nullptr;
    for (auto& [address, grader] : graders_)
      if (grader.num_asked < setup_.max_asked && (best == nullptr || grader.num_asked < best->num_asked))
        best = &grader;
    return best;
  }

  void pump() {
    while (!waiting_.empty()) {
      auto* const grader = choose();
      if (grader == nullptr) return;
      ask(waiting_.front(), *grader);
      waiting_.pop_front();
    }
  }

  void ask(uint64_t id, Grader& grader) {
    auto& job = jobs_.at(id);
    const auto address = grader.handle.address();
    job.grader = address;
    const auto attempt = ++job.num_attempts;
    ++grader.num_asked;
    const Question question(*self_, setup_.role, concat("grader ", grader.number), "score");
    self_->request(grader.handle, setup_.limit, atom::score_v, job.packed)
        .then(
            [this, id, address, attempt](const Packed& graded) {
              if (!is_under_way(id, address, attempt)) return;
              release(address);
              store(id, graded);
              pump();
            },
            [this, id, address, attempt, question](const caf::error& error) {
              if (!is_under_way(id, address, attempt)) return;  // its grader's fall was told
              const auto text = question.failed(*self_, error);
              if (is_timeout(error)) {
                give_up(address);
                return;
              }
              if (is_receiver_gone(error)) {
                gone(address);
                return;
              }
              release(address);
              jobs_.at(id).promise.deliver(error);
              jobs_.erase(id);
              pump();
            });
  }

  bool is_under_way(uint64_t id, const caf::actor_addr& address, int attempt) const {
    const auto found = jobs_.find(id);
    return found != jobs_.end() && found->second.grader == address && found->second.num_attempts == attempt;
  }

  void release(const caf::actor_addr& address) {
    const auto found = graders_.find(address);
    if (found != graders_.end()) --found->second.num_asked;
  }

  /// One that is late may be stuck in a rule for ever: its guest ends it, and its process where that cannot be.
  void give_up(const caf::actor_addr& address) {
    const auto found = graders_.find(address);
    if (found != graders_.end())
      caf::anon_send(
          found->second.guest, atom::overdue_v,
          concat("did not answer a question for ", std::chrono::duration<double>(setup_.limit).count(), " s"));
    gone(address);
  }

  void store(uint64_t id, const Packed& graded) {
    auto job = std::move(jobs_.at(id));
    jobs_.erase(id);
    try {
      const auto asked = sample_of(job.packed);
      const auto answer = sample_of(graded);
      require(answer.sample_id == asked.sample_id && answer.attempt == asked.attempt && answer.tokens == asked.tokens &&
                  answer.log_probs == asked.log_probs && answer.versions == asked.versions,
              "the grader's answer is not for sample ", asked.sample_id);
    } catch (const std::exception& error) {
      job.promise.deliver(caf::make_error(ec::failed, concat(setup_.role, ": ", error.what())));
      return;
    }
    const Question question(*self_, setup_.role, "the buffer", "store");
    self_->request(next_, setup_.store_limit, atom::store_v, graded)
        .then([promise = job.promise](int32_t result) mutable { promise.deliver(result); },
              [this, promise = job.promise, question](const caf::error& error) mutable {
                question.failed(*self_, error);
                promise.deliver(error);
              });
  }

  std::chrono::milliseconds look_interval() const {
    return std::max(setup_.wait_for_graders / 4, std::chrono::milliseconds(20));
  }

  void look_for_anybody() {
    self_->delayed_send(self_, look_interval(), atom::overdue_v);
    const auto alone = self_->clock().now() - alone_since_;
    if (!graders_.empty() || waiting_.empty() || alone <= setup_.wait_for_graders) return;
    caf::anon_send(supervisor_, atom::failed_v,
                   concat(setup_.role, ": no worker has joined with --role ", setup_.role, " for ",
                          std::chrono::duration<double>(alone).count(),
                          " s (cluster.wait_for_workers_s): ", waiting_.size(), " samples wait for their score"));
    caf::anon_send(supervisor_, atom::interrupt_v);
  }

  Pointer self_;
  sample_store_actor next_;
  supervisor_actor supervisor_;
  RewardPoolSetup setup_;
  std::map<caf::actor_addr, Grader> graders_;
  std::map<uint64_t, Job> jobs_;
  std::deque<uint64_t> waiting_;
  uint64_t next_job_ = 0;
  int num_arrived_ = 0;
  Question::Time alone_since_{};  // samples wait, and there is no grader
};

}  // namespace

reward_pool_actor spawn_reward_pool(caf::actor_system& system, sample_store_actor next, supervisor_actor supervisor,
                                    RewardPoolSetup setup) {
  return spawn_state<reward_pool_actor, RewardPoolState>(system, std::move(next), std::move(supervisor), setup);
}

}  // namespace troupe
