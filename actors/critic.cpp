#include "actors/critic.h"

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
        [this](atom::judge, int64_t step, const Packed& samples) { return values(step, samples); },
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

  std::string who() const { return concat("critic, step ", batch_ == nullptr ? 0 : batch_->step); }

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

  caf::result<Packed> values(int64_t step, const Packed& samples) {
    auto batch = std::make_shared<TrainBatch>();
    batch->step = step;
    batch->trajectories = unpack_trajectories(std::as_bytes(std::span(samples.bytes)));
    batch_ = batch;
    auto promise = self_->template make_response_promise<Packed>();
    tell_waiting_ = [promise](const caf::error& error) mutable { promise.deliver(error); };
    shards_->template ask<LocalNumbers>(
        "values",
        [this, promise](const LocalNumbers& values) mutable {
          ByteWriter writer;
          for (size_t s = 0; s < batch_->trajectories.size(); ++s) {
            const auto& of_sample = values.numbers->at(s);
            batch_->trajectories[s].values = of_sample;
            writer.put(of_sample);
          }
          const auto bytes = writer.take();
          tell_waiting_ = {};
          promise.deliver(Packed{std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size())});
        },
        atom::judge_v, LocalBatch{batch_});
    return promise;
  }

  caf::result<std::string> train(int64_t step, double kl_coefficient) {
    if (batch_ == nullptr || batch_->step != step)
      return caf::make_error(ec::failed, concat(who(), ": no values were asked for the batch of step ", step));
    // A batch of its own: the ranks may still hold the one that they judged.
    auto batch = std::make_shared<TrainBatch>(*batch_);
    batch->kl_coefficient = kl_coefficient;
    return ask_shards("train step", atom::train_v, LocalBatch{batch});
  }

  Pointer self_;
  std::optional<ShardGroup<Pointer>> shards_;
  std::shared_ptr<TrainBatch> batch_;                    // the newest that was judged
  std::function<void(const caf::error&)> tell_waiting_;  // of whoever has no answer yet
};

}  // namespace

critic_actor spawn_critic(caf::actor_system& system, ShardGroupSetup shards) {
  return spawn_state<critic_actor, CriticState>(system, std::move(shards));
}

}  // namespace troupe
