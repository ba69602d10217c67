#include "actors/judge_shards.h"

#include "actors/run_checkpoint.h"
#include "base/log.h"

namespace troupe {
namespace {

class CriticShard : public ShardWork {
 public:
  CriticShard(int rank, const LearnerShardSetup& setup)
      : setup_(setup), groups_(setup.groups->at(static_cast<size_t>(rank))) {
    at::set_num_threads(setup.num_threads);
  }

  nlohmann::json load() override {
    learner_.emplace(setup_.model->config(), groups_, setup_.options);
    learner_->load([this](const std::string& name) { return setup_.model->read(name); });
    if (!setup_.resume_from.empty()) {
      load_checkpoint(read_checkpoint(setup_.resume_from).path, *learner_);
      if (groups_.world().rank() == 0) log::info("the critic goes on from ", setup_.resume_from.string());
    }
    writer_.emplace(groups_.copy(),
                    CheckpointWriterOptions{.is_async = false, .timeout = setup_.limit, .on_written = nullptr});
    return {{"parameters", setup_.model->config().num_parameters()}};
  }

  TokenNumbers judge(const TrainBatch& batch) override { return learner_->values(batch.trajectories); }

  nlohmann::json train(const TrainBatch& batch) override {
    return learner_->train_values(batch.trajectories, batch.kl_coefficient);
  }

  nlohmann::json save(int64_t step, const StepDecision&) override {
    if (!groups_.is_first_replica()) return nlohmann::json::object();
    // More than the policy keeps: its checkpoint of this step is not whole yet, where it saves in the background that
    // before it may not be either, and until they are, a resume takes an older one.
    const auto keep = setup_.keep_latest_k > 0 ? setup_.keep_latest_k + (setup_.save_async ? 2 : 1) : 0;
    save_checkpoint({setup_.folder / "checkpoints", step, "{}", "", keep}, *learner_, groups_, *writer_);
    return nlohmann::json::object();
  }

  nlohmann::json write_model(const std::string& folder_name) override {
    if (groups_.is_first_replica())
      write_model_folder(*learner_, groups_, *setup_.model, setup_.folder / folder_name, setup_.export_dtype);
    return nlohmann::json::object();
  }

  void abort(const std::string& reason) override { groups_.abort(reason); }

 private:
  LearnerShardSetup setup_;
  const RankGroups& groups_;
  std::optional<Learner> learner_;
  std::optional<CheckpointWriter> writer_;
};

class ReferenceShard : public ShardWork {
 public:
  ReferenceShard(int rank, const LearnerShardSetup& setup)
      : setup_(setup), groups_(setup.groups->at(static_cast<size_t>(rank))) {
    at::set_num_threads(setup.num_threads);
    setup_.options.is_frozen = true;
  }

  nlohmann::json load() override {
    learner_.emplace(setup_.model->config(), groups_, setup_.options);
    learner_->load([this](const std::string& name) { return setup_.model->read(name); });
    return nlohmann::json::object();
  }

  TokenNumbers judge(const TrainBatch& batch) override {
    auto log_probs = learner_->log_probs(batch.trajectories, Learner::Wanted::kSampledTokens);
    // Without a backward nothing frees what the head needed: the frozen model would keep it gathered on every rank.
    learner_->model().parameters_changed();
    return log_probs;
  }

  void abort(const std::string& reason) override { groups_.abort(reason); }

 private:
  LearnerShardSetup setup_;
  const RankGroups& groups_;
  std::optional<Learner> learner_;
};

}  // namespace

std::unique_ptr<ShardWork> make_critic_shard(int rank, const LearnerShardSetup& setup) {
  return std::make_unique<CriticShard>(rank, setup);
}

std::unique_ptr<ShardWork> make_reference_shard(int rank, const LearnerShardSetup& setup) {
  return std::make_unique<ReferenceShard>(rank, setup);
}

}  // namespace troupe
