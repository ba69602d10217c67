// What a train step will need on ranks that nobody has yet: memory, transfers, idle time, seconds. Arithmetic over the
// same plan, schedule and specifications that a run is laid out by; the tests hold calls and bytes to the log of runs.
// Seconds come from a device's stated figures and are as good as these. Routing is taken to be even: every expert gets
// as many tokens.
#pragma once

#include "parallel/device_figures.h"
#include "parallel/parallel_model.h"

namespace troupe {

struct StepShape {
  int64_t sequence_length = 0;        // tokens of a document
  int64_t tokens_per_microbatch = 0;  // of a data rank
  int num_microbatches = 1;           // of a data rank and step
};

/// Calls of one kind on one rank in one step. `bytes`: of full tensors, as CollectiveRecord counts.
struct Transfer {
  std::string group;      // of the mesh: "shards", "tensor", ...
  std::string operation;  // "all_gather", ...
  std::string label;      // what the records' labels contain
  int64_t calls = 0, bytes = 0;
};

/// Bytes of one rank at the fullest moment of a step.
struct MemoryNeed {
  int64_t parameters = 0, gradients = 0, optimizer = 0;  // fp32 shards
  int64_t gathered = 0;                                  // in the dtype of compute
  int64_t unreduced = 0;                                 // gradients not yet summed over ranks
  int64_t activations = 0;
  int64_t head = 0;  // a chunk of logits
  int64_t total() const { return parameters + gradients + optimizer + gathered + unreduced + activations + head; }
};

struct RankEstimate {
  MeshPlace place;
  MemoryNeed memory;
  std::vector<Transfer> transfers;
  double flops = 0;             // executed, recompute included
  double compute_s = 0;         // at the device's efficiency
  double shard_transfer_s = 0;  // gathers and reductions of parameters: could run behind compute
  double other_transfer_s = 0;  // between layers: compute waits for them
};

struct StepEstimate {
  RankEstimate fullest;  // by memory
  RankEstimate slowest;  // by compute
  double bubble = 0;     // idle share of the pipeline under unit costs
  double optimizer_s = 0;
  double step_s = 0;             // nothing overlaps, as the code is
  double overlapped_step_s = 0;  // shard transfers as far behind compute as it lasts
  double model_flops = 0;        // of all ranks, without recompute
  double tokens = 0;             // of all ranks
  double mfu(const DeviceFigures& device, int num_ranks, double seconds) const {
    return model_flops / (seconds * device.peak_flops * num_ranks);
  }
};

/// UsageError where the model cannot be laid out so.
RankEstimate estimate_rank(const ModelConfig& config, const MeshDegrees& degrees, const MeshPlace& place,
                           const ParallelOptions& options, const StepShape& shape, const DeviceFigures& device);
StepEstimate estimate_step(const ModelConfig& config, const MeshDegrees& degrees, const ParallelOptions& options,
                           const StepShape& shape, const DeviceFigures& device);

/// Activation bytes that layer `layer` keeps for its backward on one rank, for `num_tokens` tokens of the row.
int64_t layer_activation_bytes(const ParallelPlan& plan, int64_t layer, int64_t num_tokens, int64_t element_bytes);

}  // namespace troupe
