// What one train step is given, and what a rank of a trainer, a critic or a reference does with it.
#pragma once

#include <nlohmann/json.hpp>

#include "actors/messages.h"
#include "base/error.h"
#include "base/trajectory.h"
#include "training/learner.h"

namespace troupe {

struct TrainBatch {
  int64_t step = 0;                                           // 1-based: the step that this batch makes
  std::vector<Trajectory> trajectories;                       // RL: every rank gets all
  std::vector<uint64_t> groups;                               // RL: places whose slots this batch frees
  std::vector<std::vector<LanguageModelBatch>> rows_by_rank;  // text and chats: each data rank its own
  std::vector<PreferencePair> pairs;                          // preferences: every rank gets all
  double kl_coefficient = 0;                                  // of a critic: of the KL in its rewards
};

/// One rank's work, without actors. Built and used on the shard's own thread; every rank makes the same calls. Throws
/// Error where the role has no such work.
class ShardWork {
 public:
  virtual ~ShardWork() = default;
  /// Builds and loads the model (from a checkpoint where the run resumes). Called again for as long as the answer holds
  /// "unfinished", so that work that takes longer than one request may is done in parts.
  virtual nlohmann::json load() = 0;
  virtual nlohmann::json train(const TrainBatch& batch) { has_none("training"); }
  virtual nlohmann::json validate(const TrainBatch& batch) { has_none("validation"); }
  /// What the model says of each sampled token: the values of a critic, the log-probs of a reference.
  virtual TokenNumbers judge(const TrainBatch& batch) { has_none("judgement of samples"); }
  /// Gathers the weights and makes them known as `version`.
  virtual nlohmann::json publish(int64_t version) { has_none("publication"); }
  virtual nlohmann::json save(int64_t step, const StepDecision& decision) { has_none("checkpoint"); }
  virtual nlohmann::json write_model(const std::string& folder_name) { has_none("export"); }
  /// Ends the other ranks' collectives with this reason.
  virtual void abort(const std::string& reason) = 0;

 private:
  [[noreturn]] static void has_none(const char* work) { fail("this role has no ", work); }
};
using ShardWorkFactory = std::function<std::unique_ptr<ShardWork>(int rank)>;

}  // namespace troupe
