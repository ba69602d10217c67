// The ranks of one model, as their owner (trainer, critic, reference) sees them: spawned and monitored together, asked
// the same together, heard when all have answered.
#pragma once

#include <set>

#include "actors/question.h"
#include "actors/shard.h"

namespace troupe {

struct ShardGroupSetup {
  int num_ranks = 1;
  ShardWorkFactory make_work;
  std::function<shard_actor(caf::actor_system&, int rank)> start_shard;  // empty: spawn_shard with make_work
  std::string role = "trainer";                                          // in the trace
  std::shared_ptr<Trace> trace;
  std::chrono::milliseconds limit{600'000};
  bool detached = true;  // on threads of their own
};

/// Lives in its owner's state; `fail` ends the owner. Pointer: the owner's stateful pointer.
template <class Pointer>
class ShardGroup {
 public:
  /// `who` names the owner, its role and step, in every question.
  ShardGroup(Pointer self, ShardGroupSetup setup, std::function<std::string()> who,
             std::function<void(const std::string& cause)> fail)
      : self_(self), setup_(std::move(setup)), who_(std::move(who)), fail_(std::move(fail)) {
    for (int rank = 0; rank < setup_.num_ranks; ++rank) {
      shards_.push_back(setup_.start_shard ? setup_.start_shard(self_->system(), rank)
                                           : spawn_shard(self_->system(), rank, setup_.make_work,
                                                         {setup_.role, setup_.trace}, setup_.detached));
      self_->monitor(shards_.back());
    }
  }
  ~ShardGroup() {
    for (const auto& shard : shards_) caf::anon_send_exit(shard, caf::exit_reason::user_shutdown);
  }
  ShardGroup(const ShardGroup&) = delete;
  ShardGroup& operator=(const ShardGroup&) = delete;

  /// Lets the ranks go; `ended` comes once the last is down. One that hangs keeps it for ever.
  void end(std::function<void()> ended) {
    ended_ = std::move(ended);
    for (const auto& shard : shards_) caf::anon_send_exit(shard, caf::exit_reason::user_shutdown);
  }

  /// Told by the owner's down handler; of anybody else it knows nothing.
  void fell(const caf::down_msg& down) {
    if (ended_) {
      std::erase_if(shards_, [&](const auto& shard) { return shard.address() == down.source; });
      if (shards_.empty()) ended_();
      return;
    }
    for (size_t rank = 0; rank < shards_.size(); ++rank)
      if (shards_[rank].address() == down.source)
        fail_(concat(who_(), ": shard ", rank, " died: ", describe_error(down.reason, self_->system())));
  }

  /// Asks every rank; `next` gets the answer of rank 0 once all have answered.
  template <class Answer, class Next, class... Ts>
  void ask(const char* what, Next next, const Ts&... message) {
    struct Gather {
      std::set<size_t> missing;  // ranks
      Answer answer;
      Next next;
    };
    auto gather = std::make_shared<Gather>(Gather{{}, {}, std::move(next)});
    for (size_t rank = 0; rank < shards_.size(); ++rank) gather->missing.insert(rank);
    for (size_t rank = 0; rank < shards_.size(); ++rank) {
      const Question question(*self_, who_(), concat("shard ", rank, " of ", shards_.size()), what);
      self_->request(shards_[rank], setup_.limit, message...)
          .then(
              [rank, gather](const Answer& answer) {
                if (rank == 0) gather->answer = answer;
                gather->missing.erase(rank);
                if (gather->missing.empty()) gather->next(gather->answer);
              },
              [this, gather, question](const caf::error& error) {
                auto cause = question.failed(*self_, error);
                if (is_timeout(error)) {
                  cause += "; no answer yet from";
                  for (const auto missing : gather->missing) cause += concat(" rank ", missing);
                }
                fail_(cause);
              });
    }
  }

 private:
  Pointer self_;
  ShardGroupSetup setup_;
  std::function<std::string()> who_;
  std::function<void(const std::string&)> fail_;
  std::vector<shard_actor> shards_;
  std::function<void()> ended_;  // set while it ends
};

}  // namespace troupe
