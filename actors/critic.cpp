#include "actors/critic.h"

#include "actors/packed.h"
#include "base/bytes.h"

namespace troupe {
namespace {

class CriticState {
 public:
  using Pointer = critic_actor::stateful_pointer<CriticState>;
  static constexpr const char* name = "critic";

  explicit CriticState(Pointer self) : self_(self) {}

  critic_actor::behavior_type start(ShardGroupSetup setup) {
    shards_.emplace(
        self_, std::move(setup), [this] { return who(); }, [this](const std::string& cause) { fail(cause); });
    self_->set_down_handler([this](const caf::down_msg& down) { shards_->fell(down); });
    return {
        [this](atom::load) { return ask_shards("load", atom::load_v); },
        [this](atom::store, int64_t step, int32_t piece, int32_t num_pieces, const Packed& samples) {
          return take(step, piece, num_pieces, samples);
        },
        [this](atom::judge, int64_t step, int32_t piece) { return values(step, piece); },
        [this](atom::train, int64_t step, double kl_coefficient) { return train(step, kl_coefficient); },
        [this](atom::save, int64_t step) { return ask_shards("save", atom::save_v, step, StepDecision{}); },
        [this](atom::write) { return ask_shards("write model", atom::write_v, std::string("model")); },
    };
  }

 private:
  /// Whoever waits hears the cause, not only that nobody answers any more.
  void fail(const std::string& cause) {
    const auto error = caf::make_error(ec::failed, cause);
    if (tell_waiting_) std::exchange(tell_waiting_, {})(error);
    self_->quit(error);
  }

  std::string who() const { return concat("critic, step ", step_); }

  template <class... Ts>
  caf::typed_response_promise<std::string> ask_shards(const char* what, const Ts&... message) {
    auto promise = self_->template make_response_promise<std::string>();
    tell_waiting_ = [promise](const caf::error& error) mutable { promise.deliver(error); };
    shards_->template ask<std::string>(
        what,
        [this, promise](const std::string& answer) mutable {
          tell_waiting_ = {};
          promise.deliver(answer);
        },
        message...);
    return promise;
  }

  caf::result<int32_t> take(int64_t step, int32_t piece, int32_t num_pieces, const Packed& samples) {
    if (piece == 0) {
      batch_ = std::make_shared<TrainBatch>();
      batch_->step = step_ = step;
      begins_ = {0};
      has_values_ = false;
    }
    if (batch_ == nullptr || step != step_ || piece != num_taken()) {
      return caf::make_error(ec::failed, concat(who(), ": piece ", piece, " of step ", step, " is not the next"));
    }
    for (auto& sample : unpack_trajectories(bytes_of(samples))) batch_->trajectories.push_back(std::move(sample));
    begins_.push_back(batch_->trajectories.size());
    num_pieces_ = num_pieces;
    return piece;
  }

  int32_t num_taken() const { return static_cast<int32_t>(begins_.size()) - 1; }

  caf::result<Packed> values(int64_t step, int32_t piece) {
    if (batch_ == nullptr || step != step_ || num_taken() != num_pieces_ || piece < 0 || piece >= num_pieces_)
      return caf::make_error(ec::failed, concat(who(), ": the batch of step ", step, " is not here"));
    if (has_values_) return values_of(piece);
    auto promise = self_->template make_response_promise<Packed>();
    tell_waiting_ = [promise](const caf::error& error) mutable { promise.deliver(error); };
    shards_->template ask<LocalNumbers>(
        "values",
        [this, promise, piece](const LocalNumbers& values) mutable {
          // Every rank has answered: none reads the batch any more.
          for (size_t s = 0; s < batch_->trajectories.size(); ++s)
            batch_->trajectories[s].values = values.numbers->at(s);
          has_values_ = true;
          tell_waiting_ = {};
          promise.deliver(values_of(piece));
        },
        atom::judge_v, LocalBatch{batch_});
    return promise;
  }

  Packed values_of(int32_t piece) const {
    ByteWriter writer;
    for (auto s = begins_[static_cast<size_t>(piece)]; s < begins_[static_cast<size_t>(piece) + 1]; ++s)
      writer.put(batch_->trajectories[s].values);
    return to_packed(writer.take());
  }

  caf::result<std::string> train(int64_t step, double kl_coefficient) {
    if (batch_ == nullptr || step != step_ || !has_values_)
      return caf::make_error(ec::failed, concat(who(), ": no values were asked for the batch of step ", step));
    batch_->kl_coefficient = kl_coefficient;
    return ask_shards("train step", atom::train_v, LocalBatch{std::exchange(batch_, nullptr)});
  }

  Pointer self_;
  std::optional<ShardGroup<Pointer>> shards_;
  std::shared_ptr<TrainBatch> batch_;  // from its first piece until the update
  std::vector<size_t> begins_;         // of its pieces, and one end, in samples
  int32_t num_pieces_ = 0;
  bool has_values_ = false;
  int64_t step_ = 0;
  std::function<void(const caf::error&)> tell_waiting_;  // of whoever has no answer yet
};

}  // namespace

critic_actor spawn_critic(caf::actor_system& system, ShardGroupSetup shards) {
  return spawn_state<critic_actor, CriticState>(system, std::move(shards));
}

}  // namespace troupe
