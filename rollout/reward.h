// Rewards: rules that grade a completion. A rule never answers a silent 0: it answers a value or the reason for none.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/trajectory.h"

namespace troupe {

/// One [[reward]] table of the configuration; `settings` holds the kind's own keys.
struct RewardOptions {
  std::string kind;  // of rollout/reward_kinds.h, or one that was registered
  std::string name;  // default: kind
  double weight = 1;
  double timeout_s = 10;
  nlohmann::json settings = nlohmann::json::object();
  /// The rule runs in other processes: files that it names are theirs, and are not looked for here. Such a rule scores
  /// nothing.
  bool is_elsewhere = false;
};

/// A rule that scores one sample from its completion text and the data's own fields. Pure and quick; thread-safe.
class RewardFunction {
 public:
  virtual ~RewardFunction() = default;
  /// What takes long (a model's weights): once, before the first score, outside of its time limit.
  virtual void load() const {}
  /// Above 0 where the rule holds its time limits itself (score() takes this long at most): it is then asked on the
  /// caller's own thread, and several samples at a time.
  virtual double longest_s() const { return 0; }
  /// Throws to say why there is no value.
  virtual double score(const Trajectory& trajectory, const nlohmann::json& metadata) const = 0;
};

/// Makes one rule; unknown kinds list the known ones, wrong settings name the key (UsageError).
std::unique_ptr<RewardFunction> make_reward_function(const RewardOptions& options);

/// Adds a kind of one's own (see examples/). To be called before configurations are read.
using RewardFactory = std::unique_ptr<RewardFunction> (*)(const RewardOptions& options);
void register_reward_kind(const std::string& kind, RewardFactory factory);
std::vector<std::string> known_reward_kinds();

/// Runs every rule on a sample, each within its time limit, and fills rewards and total_reward (weighted sum of the
/// values that are there; none where all failed, those of weight 0 aside; NaN and infinity count as failed).
class RewardSet {
 public:
  explicit RewardSet(std::vector<RewardOptions> options);
  ~RewardSet();
  void score(Trajectory& trajectory);
  int64_t num_failures() const;

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

/// Seconds that scoring one sample may take, all functions together.
double longest_score_s(const std::vector<RewardOptions>& options);
/// How many samples are worth scoring at a time: several where a function waits for somebody else.
int num_parallel_scores(const std::vector<RewardOptions>& options);
/// Scores all, as many at a time as that.
void score_all(const std::vector<RewardOptions>& options, std::vector<Trajectory>& trajectories);

/// Number in an answer, in the usual forms (\boxed{}, "####", thousands, fractions, percent, last number); none where
/// there is no answer. `strict`: only marked forms count. The canonical text of lists and non-numbers is compared by
/// answers_equal.
std::optional<std::string> extract_answer(const std::string& text, bool strict);
bool answers_equal(const std::string& left, const std::string& right);

}  // namespace troupe
