// Groups of samples on their way to the trainer: in flight, complete, filtered, handed out in admission order.
//
//   admit ──> in flight ──put x n──> complete ──(place in the order)──> batch
//                 └── give_up           ├── "failed": no sample left; "no_reward": nobody graded it     } slot is free
//                                       ├── "no_baseline": its greedy sample has no reward              }
//                 at once
//                                       └── "zero_variance": all rewards equal                          }
//
// zero_variance = "keep": such groups train as they are. "drop": they take their place in the batch but not part in it.
// "refill": other groups replace them. Nothing waits for ever: where the trainer waits and (1 + max_refill_rounds) * P
// groups have been judged meanwhile, the batch is what there is, and a batch of nothing stops the run with the counts.
// What was dropped while the trainer was busy does not count: by then the slots may have filled with good groups.
// Plain logic: knows no actor and no clock.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/trajectory.h"

namespace troupe {

enum class ZeroVariance { kKeep, kDrop, kRefill };
/// Throws UsageError with the known names.
ZeroVariance parse_zero_variance(const std::string& name);

struct GroupBufferOptions {
  int64_t num_groups_per_step = 1;  // P
  int64_t window = 1;               // W: a batch may take any complete group among the W oldest places
  ZeroVariance zero_variance = ZeroVariance::kDrop;
  int64_t max_refill_rounds = 4;
  bool has_baseline = false;  // the last sample of each group is greedy: its reward is the others' baseline_reward
};

struct BufferedGroup {
  uint64_t group = 0;
  int64_t index = 0;                       // place in the order of admission
  int64_t expected = 0;                    // samples admitted
  std::map<uint64_t, Trajectory> samples;  // by sample id
  std::map<uint64_t, std::string> given_up;
  std::optional<Trajectory> baseline;  // of a group that was handed out; stands in `samples` before
  bool complete() const { return static_cast<int64_t>(samples.size() + given_up.size()) == expected; }
};

struct DroppedGroup {
  uint64_t group = 0;
  std::string reason;
  std::vector<std::pair<uint64_t, uint32_t>> samples;      // (id, attempt) of what was finished
  std::vector<std::pair<uint64_t, std::string>> given_up;  // (id, reason) of what never came
};

/// What enters one train step. `zero_variance` groups of mode "drop" took their place but have nothing to say.
struct GroupBatch {
  std::vector<BufferedGroup> groups;       // in admission order
  std::vector<DroppedGroup> left_out;      // mode "drop": places of this batch that do not train
  std::map<std::string, int64_t> dropped;  // groups dropped since the batch before, by reason
  // Of left_out and of the dropped groups: without them the mean reward of a run that filters says nothing.
  double filtered_reward_sum = 0;
  int64_t num_filtered_rewards = 0;
  int64_t num_samples() const;
};

/// What became of an answer.
enum class PutResult { kAccepted, kDuplicate, kUnknown };

class GroupBuffer {
 public:
  explicit GroupBuffer(GroupBufferOptions options) : options_(options) {}

  /// A group gets its place. Throws Error where it is known already.
  void admit(uint64_t group, int64_t index, int64_t expected);
  /// The first answer of a sample counts; later ones are duplicates, those of groups that are gone unknown; both
  /// counted.
  PutResult put(Trajectory trajectory);
  /// The sample will never come.
  void give_up(uint64_t sample_id, const std::string& reason);
  /// Groups dropped since the last call; their slots are free.
  std::vector<DroppedGroup> take_dropped();

  /// The trainer begins to wait: the rounds of refilling count from here.
  void begin_wait() { num_dropped_in_wait_ = 0; }
  /// The next batch where it is complete. Throws Error with the counts where nothing trainable is left to wait for.
  std::optional<GroupBatch> take_batch();

  /// Everything that is held, for a checkpoint (invariant 9), and back. Incomplete groups keep their finished samples.
  std::vector<std::byte> save() const;
  void load(std::span<const std::byte> bytes, const std::vector<uint64_t>& live_groups);
  const std::map<uint64_t, BufferedGroup>& groups() const { return groups_; }

  int64_t num_waiting() const;    // complete groups
  int64_t num_in_flight() const;  // incomplete ones
  int64_t num_duplicates() const { return num_duplicates_; }
  int64_t num_unknown() const { return num_unknown_; }
  int64_t num_finalized() const { return num_finalized_; }  // groups ever completed
  /// For the text of a time-out: the oldest group and what it lacks.
  std::string describe() const;

 private:
  void settle(uint64_t group);
  void drop(uint64_t group, const std::string& reason);
  void count_filtered(const BufferedGroup& group);
  static uint64_t baseline_id(const BufferedGroup& group) {
    return make_sample_id(group.group, static_cast<uint32_t>(group.expected - 1));
  }
  int64_t judged_limit() const { return (1 + options_.max_refill_rounds) * options_.num_groups_per_step; }

  GroupBufferOptions options_;
  std::map<uint64_t, BufferedGroup> groups_;
  std::map<int64_t, uint64_t> order_;
  std::vector<DroppedGroup> dropped_;
  std::map<std::string, int64_t> dropped_since_batch_;
  int64_t num_dropped_in_wait_ = 0, num_filtered_rewards_ = 0;
  double filtered_reward_sum_ = 0;
  std::string last_failure_;  // of a sample or a reward
  int64_t num_duplicates_ = 0, num_unknown_ = 0, num_finalized_ = 0;
};

/// Samples that the live groups of a saved buffer have already (finished or given up), by group; "" has none.
/// UsageError where those groups are of another size than the run's, and would never be complete, or hold samples that
/// no reference has judged and the run needs one.
std::map<uint64_t, std::vector<uint64_t>> finished_samples(const GroupBufferOptions& options, std::string_view saved,
                                                           const std::vector<uint64_t>& live_groups,
                                                           int64_t num_samples_per_group, bool needs_reference = false);

/// True where the graded samples all have one reward: nothing to learn from. Groups of one sample are never constant.
bool has_zero_variance(const BufferedGroup& group);

}  // namespace troupe
