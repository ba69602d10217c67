// Pipeline schedules as data: for every rank the list of what it does, in order. A schedule can be checked, printed,
// drawn and timed without a model; parallel/pipeline executes it.
//
//   F  forward of a micro-batch through a stage        B  its backward, gradients of inputs and weights
//   I  gradient of the inputs alone                    W  gradients of the weights, at any time after I
//
// Known by name (P ranks, M micro-batches; slots: a forward takes one, a backward two, I and W one each):
//   "GPipe"            Huang et al. 2019: all forwards, then all backwards           idle 3 (P - 1)
//   "1F1B"             Narayanan et al. 2019: a backward as soon as there is one     idle 3 (P - 1)
//   "Interleaved1F1B"  Narayanan et al. 2021: several stages a rank; P divides M     idle 3 (P - 1) slots of a stage
//   "ZB-H1"            Qi et al. 2023: W fills what 1F1B leaves idle                 idle P - 1 (M >= P)
//   "ZBV"              Qi et al. 2024: two stages a rank, there and back again       idle P - 1 slots of a stage (M >=
//   2P)
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace troupe {

struct PipelineAction {
  enum class Kind : char { kForward = 'F', kBackward = 'B', kInput = 'I', kWeights = 'W' };
  Kind kind = Kind::kForward;
  int stage = 0;
  int microbatch = 0;
  bool operator==(const PipelineAction&) const = default;
};

struct PipelineSchedule {
  std::string name;
  int num_ranks = 1, num_microbatches = 1;
  std::vector<int> rank_of_stage;
  std::vector<std::vector<PipelineAction>> actions;  // by rank

  int num_stages() const { return static_cast<int>(rank_of_stage.size()); }
};

/// When each action starts under unit costs, every rank doing its list in order as soon as its inputs are there.
struct PipelineTimeline {
  std::vector<std::vector<int64_t>> start;  // by rank, as the actions
  int64_t length = 0;
  std::vector<int64_t> idle;  // by rank: slots of the length without work
};

const std::vector<std::string>& known_pipeline_schedules();
/// Stages a rank has: 2 for ZBV, `stages_per_rank` for Interleaved1F1B, else 1. UsageError on an unknown name.
int stages_per_rank(const std::string& name, int interleaved_stages_per_rank);
/// The rank of every stage: round and round, or there and back again.
std::vector<int> ranks_of_stages(const std::string& name, int num_ranks, int interleaved_stages_per_rank);
/// How many micro-batches the schedule takes at a time.
int microbatch_multiple(const std::string& name, int num_ranks);
/// UsageError on an unknown name or a number of micro-batches that the schedule cannot take.
PipelineSchedule make_pipeline_schedule(const std::string& name, int num_ranks, int num_microbatches,
                                        int interleaved_stages_per_rank = 2);

/// Times the schedule. Throws Error naming the action where it is not sound: something missing, double, on the wrong
/// rank, or never ready.
PipelineTimeline time_schedule(const PipelineSchedule& schedule);
/// One line a rank: "0: F0.0 F0.1 B0.0 ..." (stage.micro-batch).
std::string print(const PipelineSchedule& schedule);
/// One row a rank, one column a slot: "F3" is the forward of micro-batch 3, in lower case on a rank's further stages;
/// "." is idle.
std::string draw(const PipelineSchedule& schedule);

}  // namespace troupe
