// One rank's work with the learner: what the shard actor drives in real runs, for RL and for pre-training.
// actors/judge_shards.h does the same for the models beside the policy.
#pragma once

#include "actors/model_source.h"
#include "actors/run_recorder.h"
#include "actors/train_batch.h"
#include "actors/weight_board.h"

namespace troupe {

struct LearnerShardSetup {
  std::shared_ptr<const ModelSource> model;
  std::shared_ptr<const ModelSource> reference;  // frozen, for pairs; null: none
  /// DPO and IPO: every pair of the run; the reference's log-probs are computed once, before training, and kept in the
  /// run folder for a resume.
  std::shared_ptr<const std::vector<PreferencePair>> reference_pairs;
  int64_t num_resting_steps = 0;  // at the start of an RL run, in which the policy does not learn
  LearnerOptions options;
  std::shared_ptr<std::vector<RankGroups>> groups;  // one a rank
  std::shared_ptr<WeightBoard> board;               // null: nothing is published (pre-training)
  at::ScalarType publish_dtype = at::kFloat;
  /// Told of each version, before the board, for other processes; may be empty.
  std::function<void(WeightSnapshotPointer)> on_publish;
  bool record_batches = false;            // RL: every batch is kept for a replay
  std::filesystem::path folder;           // of the run
  int64_t num_steps = 0, first_step = 0;  // train steps of the run, and those done before
  std::filesystem::path resume_from;      // checkpoint folder, or ""
  std::filesystem::path initial_weights;  // checkpoint whose weights replace the model's at the start, or ""
  std::string export_dtype = "float32";
  int64_t keep_latest_k = 3;
  bool save_async = true;                  // checkpoints are written while training goes on
  std::shared_ptr<ObserverGate> observer;  // told of a checkpoint once it is written
  int num_threads = 1;                     // of this rank
  std::chrono::milliseconds limit{600'000};
};

std::unique_ptr<ShardWork> make_learner_shard(int rank, const LearnerShardSetup& setup);

}  // namespace troupe
