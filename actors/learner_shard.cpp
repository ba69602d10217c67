#include "actors/learner_shard.h"

#include "actors/run_checkpoint.h"
#include "base/error.h"
#include "base/log.h"

namespace troupe {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

class LearnerShard : public ShardWork {
 public:
  LearnerShard(int rank, const LearnerShardSetup& setup)
      : rank_(rank), setup_(setup), groups_(setup.groups->at(static_cast<size_t>(rank))) {
    at::set_num_threads(setup.num_threads);  // per thread: each rank sets its own
  }

  nlohmann::json load() override {
    learner_.emplace(setup_.model->config(), groups_, setup_.options);
    learner_->load([this](const std::string& name) { return setup_.model->read(name); });
    if (!setup_.resume_from.empty()) load_checkpoint(setup_.resume_from, *learner_);
    writer_.emplace(
        groups_.shards(),
        CheckpointWriterOptions{.is_async = setup_.save_async,
                                .timeout = setup_.limit,
                                .on_written = [observer = setup_.observer](const std::filesystem::path& path) {
                                  if (observer != nullptr) observer->say(concat("checkpoint written: ", path.string()));
                                }});
    return {{"parameters", setup_.model->config().num_parameters()},
            {"steps", setup_.options.schedule.total_steps},
            {"first_step", learner_->step()},
            {"folder", setup_.folder.string()},
            {"num_ranks", groups_.world().size()},
            {"resumed_from", setup_.resume_from.string()}};
  }

  nlohmann::json train(const TrainBatch& batch) override {
    writer_->check();  // a save that failed in the background ends the run here
    if (batch.rows_by_rank.empty()) return learner_->train_policy(batch.trajectories);
    return learner_->train_language_model(batch.rows_by_rank.at(static_cast<size_t>(rank_)));
  }

  nlohmann::json validate(const TrainBatch& batch) override {
    return learner_->evaluate_language_model(batch.rows_by_rank.at(static_cast<size_t>(rank_)));
  }

  nlohmann::json publish(int64_t version) override {
    if (setup_.board == nullptr || !groups_.is_first_replica()) return nlohmann::json::object();
    double wait_s = 0;
    // Only rank 0 waits for readers; the others meet it in the gather, whose own time limit is no shorter.
    if (rank_ == 0) wait_s = setup_.board->wait_for_room(setup_.limit);
    const auto begin = Clock::now();
    WeightSnapshot snapshot{version, learner_->gather_weights(setup_.publish_dtype)};
    const auto gathered = Clock::now();
    if (rank_ != 0) return nlohmann::json::object();
    setup_.board->publish(pack_model(setup_.model->config(), snapshot, setup_.publish_dtype, setup_.num_threads));
    return {{"timing/weight_sync/wait_for_readers(s)", wait_s},
            {"timing/weight_sync/gather(s)", std::chrono::duration<double>(gathered - begin).count()},
            {"timing/weight_sync/pack(s)", seconds_since(gathered)}};
  }

  nlohmann::json save(int64_t step, const StepDecision& decision) override {
    if (!groups_.is_first_replica()) return nlohmann::json::object();
    const auto begin = Clock::now();
    save_checkpoint(
        {setup_.folder / "checkpoints", step, decision.state_json, decision.groups.bytes, setup_.keep_latest_k},
        *learner_, groups_, *writer_);
    if (decision.stop) writer_->wait();  // the run is done once its last checkpoint is
    return {{"timing/save(s)", seconds_since(begin)}};
  }

  nlohmann::json write_model(const std::string& folder_name) override {
    if (!groups_.is_first_replica()) return nlohmann::json::object();
    const auto weights = learner_->gather_weights(at::kFloat);
    if (rank_ == 0) {
      const auto folder = setup_.folder / folder_name;
      std::filesystem::remove_all(folder);
      const auto dtype = setup_.export_dtype == "bfloat16"  ? at::kBFloat16
                         : setup_.export_dtype == "float16" ? at::kHalf
                                                            : at::kFloat;
      write_hf_folder(folder, setup_.model->config(), weights, dtype, setup_.model->reader());
      log::info("model written to ", folder.string());
    }
    return nlohmann::json::object();
  }

  void abort(const std::string& reason) override { groups_.abort(reason); }

 private:
  int rank_;
  LearnerShardSetup setup_;
  const RankGroups& groups_;
  std::optional<Learner> learner_;
  std::optional<CheckpointWriter> writer_;
};

}  // namespace

std::unique_ptr<ShardWork> make_learner_shard(int rank, const LearnerShardSetup& setup) {
  return std::make_unique<LearnerShard>(rank, setup);
}

}  // namespace troupe
