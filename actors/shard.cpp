#include "actors/shard.h"

#include "actors/spawn.h"

namespace troupe {
namespace {

class ShardState {
 public:
  using Pointer = shard_actor::stateful_pointer<ShardState>;
  static constexpr const char* name = "shard";

  explicit ShardState(Pointer self) : self_(self) {}

  shard_actor::behavior_type start(int rank, ShardWorkFactory make_work, ShardTrace trace) {
    rank_ = rank;
    make_work_ = std::move(make_work);
    trace_ = std::move(trace.trace);
    role_ = rank == 0 ? trace.role : concat(trace.role, " ", rank);
    return {
        [this](atom::load) {
          return run("load", [&] {
            if (work_ == nullptr) work_ = make_work_(rank_);
            return work_->load();
          });
        },
        [this](atom::train, const LocalBatch& local) {
          step_ = local.batch->step;
          return run("train step", [&] { return work_->train(*local.batch); });
        },
        [this](atom::validate, const LocalBatch& local) {
          return run("validate", [&] { return work_->validate(*local.batch); });
        },
        [this](atom::judge, const LocalBatch& local) {
          step_ = std::max(step_, local.batch->step);  // a reference's batches are of no step
          return attempt("judge", [&]() -> caf::result<LocalNumbers> {
            return LocalNumbers{std::make_shared<const TokenNumbers>(work_->judge(*local.batch))};
          });
        },
        [this](atom::weights, int64_t version) { return run("publish", [&] { return work_->publish(version); }); },
        [this](atom::save, int64_t step, const StepDecision& decision) {
          return run("save", [&] { return work_->save(step, decision); });
        },
        [this](atom::write, const std::string& folder) {
          return run("write model", [&] { return work_->write_model(folder); });
        },
    };
  }

 private:
  template <class F>
  caf::result<std::string> run(const char* what, F&& body) {
    return attempt(what, [&]() -> caf::result<std::string> { return body().dump(); });
  }

  /// An exception ends the other ranks' collectives with its text and becomes the answer.
  template <class F>
  auto attempt(const char* what, F&& body) -> decltype(body()) {
    try {
      Trace::Span busy(*trace_, role_, concat(what, " ", step_));
      return body();
    } catch (const std::exception& error) {
      const auto cause = concat("shard ", rank_, ", ", what, " at step ", step_, ": ", error.what());
      if (work_ != nullptr) work_->abort(cause);
      return caf::make_error(ec::failed, cause);
    }
  }

  Pointer self_;
  int rank_ = 0;
  int64_t step_ = 0;
  ShardWorkFactory make_work_;
  std::string role_;
  std::shared_ptr<Trace> trace_;
  std::unique_ptr<ShardWork> work_;
};

}  // namespace

shard_actor spawn_shard(caf::actor_system& system, int rank, ShardWorkFactory make_work, ShardTrace trace,
                        bool detached) {
  return spawn_worker<shard_actor, ShardState>(detached, system, rank, std::move(make_work), std::move(trace));
}

}  // namespace troupe
