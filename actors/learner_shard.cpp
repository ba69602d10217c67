#include "actors/learner_shard.h"

#include "actors/batch_store.h"
#include "actors/run_checkpoint.h"
#include "base/cpu.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
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
    if (setup_.reference != nullptr && setup_.reference_pairs == nullptr)
      learner_->load_reference(setup_.reference->config(),
                               [this](const std::string& name) { return setup_.reference->read(name); });
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
    if (setup_.critic != nullptr) load_critic();
    return {{"parameters", setup_.model->config().num_parameters()},
            {"steps", setup_.num_steps},
            {"first_step", setup_.first_step},
            {"folder", setup_.folder.string()},
            {"num_ranks", groups_.world().size()},
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
    if (critic_)
      save_checkpoint({critic_checkpoints(setup_.folder), step, "{}", "", critic_keep_latest_k()}, *critic_, groups_,
                      *critic_writer_);
    save_checkpoint(
        {setup_.folder / "checkpoints", step, decision.state_json, decision.groups.bytes, setup_.keep_latest_k},
        *learner_, groups_, *writer_);
    if (decision.stop) writer_->wait();  // the run is done once its last checkpoint is
    return {{"timing/save(s)", seconds_since(begin)}};
  }

  nlohmann::json write_model(const std::string& folder_name) override {
    if (!groups_.is_first_replica()) return nlohmann::json::object();
    write_folder(*learner_, *setup_.model, setup_.folder / folder_name);
    if (critic_ && folder_name == "model") write_folder(*critic_, *setup_.critic, setup_.folder / "critic" / "model");
    return nlohmann::json::object();
  }

  void abort(const std::string& reason) override { groups_.abort(reason); }

 private:
  nlohmann::json train_batch(const TrainBatch& batch) {
    if (!batch.pairs.empty()) return learner_->train_preference(batch.pairs);
    if (batch.rows_by_rank.empty() && setup_.record_batches && rank_ == 0) write_batch(setup_.folder, batch);
    if (batch.rows_by_rank.empty())
      return critic_ ? train_with_critic(batch) : nlohmann::json(learner_->train_policy(batch.trajectories));
    return learner_->train_language_model(batch.rows_by_rank.at(static_cast<size_t>(groups_.data_rank())));
  }

  static std::filesystem::path critic_checkpoints(const std::filesystem::path& run) {
    return run / "critic" / "checkpoints";
  }

  /// Its checkpoints lie beside the policy's and are written first and in the foreground: where a checkpoint of the
  /// policy is whole, the critic's of that step is.
  void load_critic() {
    auto options = setup_.options;
    options.optimizer.lr = setup_.critic_lr;
    critic_.emplace(setup_.critic->config(), groups_, options);
    critic_->load([this](const std::string& name) { return setup_.critic->read(name); });
    critic_writer_.emplace(groups_.copy(),
                           CheckpointWriterOptions{.is_async = false, .timeout = setup_.limit, .on_written = nullptr});
    const auto& from = setup_.resume_from;
    if (from.empty()) return;
    const auto checkpoint = read_checkpoint(critic_checkpoints(from.parent_path().parent_path()) / from.filename());
    load_checkpoint(checkpoint.path, *critic_);
  }

  /// One more than the policy keeps: the policy's checkpoint of this step is not whole yet, and until it is, a resume
  /// takes the one before it.
  int64_t critic_keep_latest_k() const { return setup_.keep_latest_k > 0 ? setup_.keep_latest_k + 1 : 0; }

  /// Values first, then both learn from the same advantages; at the start the critic alone.
  nlohmann::json train_with_critic(const TrainBatch& batch) {
    auto judged = batch.trajectories;
    learner_->add_reference_log_probs(judged);
    auto values = critic_->values(judged);
    for (size_t s = 0; s < judged.size(); ++s) judged[s].values = std::move(values[s]);
    const auto kl_coefficient = learner_->kl_coefficient();
    nlohmann::json metrics = nlohmann::json::object();
    if (batch.step > setup_.critic_warmup_steps) metrics = learner_->train_policy(judged);
    for (const auto& [name, value] : critic_->train_values(judged, kl_coefficient)) metrics[name] = value;
    return metrics;
  }

  void write_folder(Learner& learner, const ModelSource& source, const std::filesystem::path& folder) {
    const auto weights = learner.borrow_weights(at::kFloat);
    if (rank_ != 0) return;
    // Beside the old folder until it is whole: a full disk must not cost the model that was there.
    auto partial = folder;
    partial += ".partial";
    std::filesystem::remove_all(partial);
    std::filesystem::create_directories(folder.parent_path());
    const auto dtype = setup_.export_dtype == "bfloat16"  ? at::kBFloat16
                       : setup_.export_dtype == "float16" ? at::kHalf
                                                          : at::kFloat;
    write_hf_folder(partial, source.config(), weights, dtype, source.reader());
    replace_folder(partial, folder);
    log::info("model written to ", folder.string());
  }

  /// The learner's own memory holds the reference for as long as it is asked (pairs have their content's hash as id).
  /// One part a call, each kept in the run folder, where a later start finds it; true once every pair is known.
  bool load_pair_reference() {
    constexpr size_t kNumPairsAtOnce = 64;
    const auto path = setup_.folder / "reference_log_probs.json";
    const auto& pairs = *setup_.reference_pairs;
    if (!has_reference_weights_) {
      reference_id_ = reference_id();
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

  /// Training changes every weight, so one tensor tells two models of one shape apart.
  std::string reference_id() const {
    const auto weight = setup_.reference->read(parameter_specs(setup_.reference->config()).front().name).contiguous();
    return xxh3_128(std::span(static_cast<const std::byte*>(weight.const_data_ptr()), weight.nbytes()));
  }

  int rank_;
  LearnerShardSetup setup_;
  const RankGroups& groups_;
  std::optional<Learner> learner_;
  PreferenceReference pair_reference_;  // until it is whole
  bool has_reference_weights_ = false;
  std::string reference_id_;
  std::optional<CheckpointWriter> writer_;
  HeapTrimmer heap_;               // rank 0 trims for all
  std::optional<Learner> critic_;  // of advantage "gae"
  std::optional<CheckpointWriter> critic_writer_;
};

}  // namespace

std::unique_ptr<ShardWork> make_learner_shard(int rank, const LearnerShardSetup& setup) {
  return std::make_unique<LearnerShard>(rank, setup);
}

}  // namespace troupe
