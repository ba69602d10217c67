#include "actors/reference.h"

#include "actors/packed.h"

#include <deque>

namespace troupe {
namespace {

/// Samples that wait, and the ranks that judge them. Pointer: the owner's stateful pointer.
template <class Pointer>
class Desk {
 public:
  using Done = std::function<void(const Trajectory& judged)>;

  /// `fail` ends the owner.
  Desk(Pointer self, ReferenceSetup setup, std::function<void(const std::string& cause)> fail)
      : max_samples_(setup.max_samples),
        shards_(
            self, std::move(setup.shards), [] { return std::string("reference"); }, std::move(fail)) {
    self->set_down_handler([this](const caf::down_msg& down) { shards_.fell(down); });
  }

  void load(std::function<void()> loaded) {
    shards_.template ask<std::string>(
        "load",
        [this, loaded = std::move(loaded)](const std::string&) {
          is_busy_ = false;
          loaded();
          judge();
        },
        atom::load_v);
  }

  void end(std::function<void()> ended) { shards_.end(std::move(ended)); }

  void add(Trajectory sample, Done done) {
    waiting_.push_back({std::move(sample), std::move(done)});
    judge();
  }

 private:
  struct Waiting {
    Trajectory sample;
    Done done;
  };

  void judge() {
    if (is_busy_ || waiting_.empty()) return;
    is_busy_ = true;
    auto batch = std::make_shared<TrainBatch>();
    std::vector<Done> dones;
    while (!waiting_.empty() && static_cast<int>(dones.size()) < max_samples_) {
      dones.push_back(std::move(waiting_.front().done));
      batch->trajectories.push_back(std::move(waiting_.front().sample));
      waiting_.pop_front();
    }
    shards_.template ask<LocalNumbers>(
        "log-probs",
        [this, batch, dones = std::move(dones)](const LocalNumbers& log_probs) {
          for (size_t s = 0; s < dones.size(); ++s) {
            auto sample = batch->trajectories[s];
            sample.reference_log_probs = log_probs.numbers->at(s);
            dones[s](sample);
          }
          is_busy_ = false;
          judge();
        },
        atom::judge_v, LocalBatch{batch});
  }

  int max_samples_;
  ShardGroup<Pointer> shards_;
  std::deque<Waiting> waiting_;
  bool is_busy_ = true;  // loading, or judging
};

/// What a packed sample holds that cannot be read is its asker's failure.
template <class Result, class Body>
caf::result<Result> with_sample(const Packed& packed, Body&& body) {
  try {
    return body(sample_of(packed));
  } catch (const std::exception& error) {
    return caf::make_error(ec::failed, concat("reference: ", error.what()));
  }
}

class ReferenceState {
 public:
  using Pointer = sample_store_actor::stateful_pointer<ReferenceState>;
  static constexpr const char* name = "reference";

  explicit ReferenceState(Pointer self) : self_(self) {}

  sample_store_actor::behavior_type start(sample_store_actor next, ReferenceSetup setup) {
    next_ = std::move(next);
    limit_ = setup.shards.limit;
    desk_.emplace(self_, std::move(setup), [this](const std::string& cause) {
      self_->quit(caf::make_error(ec::failed, "reference: " + cause));
    });
    desk_->load([] {});
    return {[this](atom::store, const Packed& packed) {
      return with_sample<int32_t>(packed, [&](Trajectory sample) {
        auto promise = self_->template make_response_promise<int32_t>();
        desk_->add(std::move(sample), [this, promise](const Trajectory& judged) { hand_on(judged, promise); });
        return promise;
      });
    }};
  }

 private:
  void hand_on(const Trajectory& sample, caf::typed_response_promise<int32_t> promise) {
    const Question question(*self_, "reference", "the buffer", "store");
    self_->request(next_, limit_, atom::store_v, to_packed(sample))
        .then([promise](int32_t result) mutable { promise.deliver(result); },
              [this, promise, question](const caf::error& error) mutable {
                question.failed(*self_, error);
                promise.deliver(error);
              });
  }

  Pointer self_;
  sample_store_actor next_;
  std::chrono::milliseconds limit_{0};
  std::optional<Desk<Pointer>> desk_;
};

class ReferenceGraderState {
 public:
  using Pointer = grader_actor::stateful_pointer<ReferenceGraderState>;
  static constexpr const char* name = "reference";

  explicit ReferenceGraderState(Pointer self) : self_(self) {}

  grader_actor::behavior_type start(ReferenceSetup setup, std::function<void()> loaded) {
    desk_.emplace(self_, std::move(setup),
                  [this](const std::string& cause) { end(caf::make_error(ec::failed, "reference: " + cause)); });
    self_->set_exit_handler([this](caf::exit_msg& exit) { end(exit.reason); });
    desk_->load(std::move(loaded));
    return {[this](atom::score, const Packed& packed) {
      return with_sample<Packed>(packed, [&](Trajectory sample) {
        auto promise = self_->template make_response_promise<Packed>();
        desk_->add(std::move(sample),
                   [promise](const Trajectory& judged) mutable { promise.deliver(to_packed(judged)); });
        return promise;
      });
    }};
  }

 private:
  /// Once every rank is down: whoever watches it learns whether one of them hangs, and what it holds of the machine.
  void end(const caf::error& reason) {
    if (std::exchange(is_ending_, true)) return;
    desk_->end([this, reason] { self_->quit(reason); });
  }

  Pointer self_;
  std::optional<Desk<Pointer>> desk_;
  bool is_ending_ = false;
};

}  // namespace

sample_store_actor spawn_reference(caf::actor_system& system, sample_store_actor next, ReferenceSetup setup) {
  return spawn_state<sample_store_actor, ReferenceState>(system, std::move(next), std::move(setup));
}

grader_actor spawn_reference_grader(caf::actor_system& system, ReferenceSetup setup, std::function<void()> loaded) {
  return spawn_state<grader_actor, ReferenceGraderState>(system, std::move(setup), std::move(loaded));
}

}  // namespace troupe
