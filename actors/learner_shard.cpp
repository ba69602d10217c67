#include "actors/learner_shard.h"

#include "actors/batch_store.h"
#include "actors/run_checkpoint.h"
#include "base/cpu.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "parallel/checkpoint_folder.h"

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
    if (!learner_) learner_.emplace(setup_.model->config(), groups_, setup_.options);
    if (setup_.reference_pairs != nullptr && !load_pair_reference())
      return {{"unfinished", concat("log-probs of the reference: ", pair_reference_.size(), " of ",
                                    setup_.reference_pairs->size(), " pairs")}};
    learner_->load([this](const std::string& name) { return setup_.model->read(name); });
    if (!setup_.resume_from.empty()) {
      load_checkpoint(setup_.resume_from, *learner_);
    } else if (!setup_.initial_weights.empty()) {
      load_checkpoint_weights(setup_.initial_weights, *learner_);
    }
    writer_.emplace(groups_.copy(), CheckpointWriterOptions{
                                        .is_async = setup_.save_async,
                                        .timeout = setup_.limit,
                                        .on_written = [observer = setup_.observer](const std::filesystem::path& path) {
                                          if (observer != nullptr)
                                            observer->say(concat("checkpoint written: ", path.string()));
                                        }});
    return {{"parameters", setup_.model->config().num_parameters()},
            {"steps", setup_.num_steps},
            {"first_step", setup_.first_step},
            {"folder", setup_.folder.string()},
            {"num_ranks", groups_.world().size()},
            {"next_kl_coefficient", learner_->kl_coefficient()},
            {"resumed_from", setup_.resume_from.string()}};
  }

  nlohmann::json train(const TrainBatch& batch) override {
    writer_->check();  // a save that failed in the background ends the run here
    auto metrics = train_batch(batch);
    if (rank_ == 0) heap_.after_round();
    return metrics;
  }

  nlohmann::json validate(const TrainBatch& batch) override {
    if (!batch.pairs.empty()) return learner_->evaluate_preference(batch.pairs);
    return learner_->evaluate_language_model(batch.rows_by_rank.at(static_cast<size_t>(groups_.data_rank())));
  }

  nlohmann::json publish(int64_t version) override {
    if (setup_.board == nullptr || !groups_.is_first_replica()) return nlohmann::json::object();
    double wait_s = 0;
    // Only rank 0 waits for readers; the others meet it in the gather, whose own time limit is no shorter.
    // A little less than the trainer waits for this rank, so that the one who knows why speaks first.
    if (rank_ == 0) wait_s = setup_.board->wait_for_room(setup_.limit * 9 / 10);
    const auto begin = Clock::now();
    // Other processes read a version for longer than until the next step, so theirs is a copy.
    const auto snapshot = std::make_shared<const WeightSnapshot>(
        WeightSnapshot{version, setup_.on_publish ? learner_->gather_weights(setup_.publish_dtype)
                                                  : learner_->borrow_weights(setup_.publish_dtype)});
    const auto gathered = Clock::now();
    if (rank_ != 0) return nlohmann::json::object();
    if (setup_.on_publish) setup_.on_publish(snapshot);
    setup_.board->publish(pack_model(setup_.model->config(), *snapshot, setup_.publish_dtype, setup_.num_threads));
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
    write_model_folder(*learner_, groups_, *setup_.model, setup_.folder / folder_name, setup_.export_dtype);
    return nlohmann::json::object();
  }

  void abort(const std::string& reason) override { groups_.abort(reason); }

 private:
  nlohmann::json train_batch(const TrainBatch& batch) {
    if (!batch.pairs.empty()) return learner_->train_preference(batch.pairs);
    if (batch.rows_by_rank.empty() && setup_.record_batches && rank_ == 0) write_batch(setup_.folder, batch);
    if (batch.rows_by_rank.empty()) return train_policy(batch);
    return learner_->train_language_model(batch.rows_by_rank.at(static_cast<size_t>(groups_.data_rank())));
  }

  /// At the start the critic learns alone.
  nlohmann::json train_policy(const TrainBatch& batch) {
    nlohmann::json metrics = nlohmann::json::object();
    if (batch.step > setup_.num_resting_steps) metrics = learner_->train_policy(batch.trajectories);
    metrics["next_kl_coefficient"] = learner_->kl_coefficient();
    return metrics;
  }

  /// The learner's own memory holds the reference for as long as it is asked (pairs have their content's hash as id).
  /// One part a call, each kept in the run folder, where a later start finds it; true once every pair is known.
  bool load_pair_reference() {
    constexpr size_t kNumPairsAtOnce = 64;
    const auto path = setup_.folder / "reference_log_probs.json";
    const auto& pairs = *setup_.reference_pairs;
    if (!has_reference_weights_) {
      reference_id_ = setup_.reference->weights_id();
      read_pair_reference(path);
      learner_->load([this](const std::string& name) { return setup_.reference->read(name); });
      has_reference_weights_ = true;
    }
    std::vector<PreferencePair> some;
    size_t num_missing = 0;
    for (const auto& pair : pairs) {
      if (pair_reference_.contains(pair.id)) continue;
      ++num_missing;
      if (some.size() < kNumPairsAtOnce) some.push_back(pair);
    }
    if (!some.empty()) {
      pair_reference_.merge(learner_->preference_log_probs(some));
      auto entries = nlohmann::json::array();
      for (const auto& [id, sums] : pair_reference_) entries.push_back({id, sums.first, sums.second});
      if (rank_ == 0)
        write_file_atomically(path, nlohmann::json{{"reference", reference_id_}, {"pairs", entries}}.dump());
    }
    if (num_missing > some.size()) return false;
    learner_->set_preference_reference(std::move(pair_reference_));
    return true;
  }

  /// What an earlier start found out about the same reference.
  void read_pair_reference(const std::filesystem::path& path) {
    if (!std::filesystem::exists(path)) return;
    const auto saved = nlohmann::json::parse(read_file(path), nullptr, false);
    if (!saved.is_object() || saved.value("reference", "") != reference_id_) return;
    for (const auto& entry : saved.at("pairs")) pair_reference_[entry.at(0)] = {entry.at(1), entry.at(2)};
  }

  int rank_;
  LearnerShardSetup setup_;
  const RankGroups& groups_;
  std::optional<Learner> learner_;
  PreferenceReference pair_reference_;  // until it is whole
  bool has_reference_weights_ = false;
  std::string reference_id_;
  std::optional<CheckpointWriter> writer_;
  HeapTrimmer heap_;  // rank 0 trims for all
};

}  // namespace

std::unique_ptr<ShardWork> make_learner_shard(int rank, const LearnerShardSetup& setup) {
  return std::make_unique<LearnerShard>(rank, setup);
}

}  // namespace troupe
