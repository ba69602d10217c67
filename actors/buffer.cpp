#include "actors/buffer.h"

#include "actors/packed.h"
#include "actors/spawn.h"
#include "actors/train_batch.h"

namespace troupe {
namespace {

class BufferState {
 public:
  using Pointer = buffer_actor::stateful_pointer<BufferState>;
  static constexpr const char* name = "buffer";

  explicit BufferState(Pointer self) : self_(self) {}

  buffer_actor::behavior_type start(BufferSetup setup) {
    text_ = std::move(setup.text);
    buffer_.emplace(setup.options);
    if (!setup.saved.empty()) buffer_->load(std::as_bytes(std::span(setup.saved)), setup.live_groups);
    return {
        [this](atom::batch, int64_t step) { return ask_batch(step); },
        [this](atom::arrive, const caf::strong_actor_ptr& director) {
          director_ = caf::actor_cast<director_actor>(director);
          tell_dropped();
        },
        [this](atom::admit, const GroupTicket& ticket) {
          buffer_->admit(ticket.group, ticket.index, ticket.num_samples);
        },
        [this](atom::store, const Packed& packed) { return store(packed); },
        [this](atom::give_up, uint64_t sample_id, const std::string& reason) {
          buffer_->give_up(sample_id, reason);
          settle();
        },
        [this](atom::snapshot) { return to_packed(buffer_->save()); },
        [this](atom::interrupt) {
          is_interrupted_ = true;
          if (waiting_.pending()) waiting_.deliver(caf::make_error(ec::interrupted));
          waiting_ = {};
        },
        [this](atom::status) {
          return nlohmann::json{{"text", buffer_->describe()},
                                {"complete", buffer_->num_waiting()},
                                {"in_flight", buffer_->num_in_flight()},
                                {"num_duplicates", buffer_->num_duplicates()}}
              .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
        },
    };
  }

 private:
  caf::result<LocalBatch> ask_batch(int64_t step) {
    // The trainer may have asked just before it could hear of it: nobody admits groups for this batch any more.
    if (is_interrupted_) return caf::make_error(ec::interrupted);
    step_ = step;
    buffer_->begin_wait();
    waiting_ = self_->template make_response_promise<LocalBatch>();
    auto answer = waiting_;
    settle();
    return answer;
  }

  /// A damaged or misplaced sample is its sender's failure, not the buffer's.
  caf::result<int32_t> store(const Packed& packed) {
    uint64_t id = 0;
    PutResult result{};
    try {
      auto trajectory = sample_of(packed);
      id = trajectory.sample_id;
      result = buffer_->put(std::move(trajectory));
    } catch (const std::exception& error) {
      return caf::make_error(ec::failed, concat("buffer: ", error.what()));
    }
    if (result == PutResult::kAccepted) caf::anon_send(director_, atom::finished_v, id);
    settle();
    return static_cast<int32_t>(result);
  }

  void tell_dropped() {
    if (!director_) return;
    for (const auto& group : buffer_->take_dropped()) {
      GroupDrop drop;
      drop.group = group.group;
      drop.reason = group.reason;
      for (const auto& [id, attempt] : group.samples) {
        drop.sample_ids.push_back(id);
        drop.attempts.push_back(attempt);
      }
      for (const auto& [id, reason] : group.given_up) {
        drop.given_up_ids.push_back(id);
        drop.given_up_reasons.push_back(reason);
      }
      caf::anon_send(director_, atom::dropped_v, std::move(drop));
    }
  }

  /// Hands out the waiting batch where it is complete; whatever the filters dropped goes to the director.
  void settle() {
    std::optional<GroupBatch> batch;
    if (waiting_.pending()) {
      try {
        batch = buffer_->take_batch();
      } catch (const std::exception& error) {
        waiting_.deliver(caf::make_error(ec::failed, std::string(error.what())));
        waiting_ = {};
      }
    }
    tell_dropped();
    if (!batch) return;
    auto summary = summarize_batch(*batch, step_, text_);
    auto& metrics = summary["metrics"];
    metrics["rollout_buffer/num_groups_waiting"] = buffer_->num_waiting();
    metrics["rollout_buffer/inflight"] = buffer_->num_in_flight();
    metrics["rollout_buffer/finalized"] = buffer_->num_finalized();
    metrics["rollout_buffer/num_duplicates"] = buffer_->num_duplicates();
    metrics["rollout_buffer/num_unknown"] = buffer_->num_unknown();
    auto made = std::make_shared<TrainBatch>();
    made->step = step_;
    for (const auto& group : batch->left_out) made->groups.push_back(group.group);
    for (auto& group : batch->groups) {
      made->groups.push_back(group.group);
      for (auto& [id, sample] : group.samples) made->trajectories.push_back(std::move(sample));
    }
    caf::anon_send(director_, atom::batch_v, step_,
                   summary.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    waiting_.deliver(LocalBatch{std::move(made)});
    waiting_ = {};
  }

  Pointer self_;
  TokenText text_;
  std::optional<GroupBuffer> buffer_;
  director_actor director_;
  int64_t step_ = 0;
  bool is_interrupted_ = false;
  caf::typed_response_promise<LocalBatch> waiting_;
};

}  // namespace

buffer_actor spawn_buffer(caf::actor_system& system, BufferSetup setup) {
  return spawn_state<buffer_actor, BufferState>(system, std::move(setup));
}

}  // namespace troupe
