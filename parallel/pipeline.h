// Executes a pipeline schedule on one rank: micro-batches through the stages that this rank has, activations and their
// gradients to and from the ranks that have the neighbouring stages.
#pragma once

#include "parallel/fully_sharded.h"
#include "parallel/pipeline_schedule.h"

namespace troupe {

struct PipelineOptions {
  std::string schedule = "1F1B";
  int stages_per_rank = 2;  // of Interleaved1F1B
  /// Layers of every stage in order; empty: as even as can be.
  std::vector<int64_t> num_layers_by_stage;
};

/// The units of every stage. UsageError where there are too few layers or the numbers do not add up.
std::vector<PlanOptions::Stage> pipeline_stages(const PipelineOptions& options, int num_ranks, int64_t num_layers);

/// What a rank does for one micro-batch.
struct PipelineWork {
  /// The stage's output from its input (undefined for stage 0).
  std::function<Tensor(int stage, int microbatch, const Tensor& x)> forward;
  /// Rows of the activations that travel.
  std::function<int64_t(int microbatch)> num_rows;
  /// The last stage's output to what its backward begins from; without gradients its value is not used.
  std::function<Tensor(int microbatch, const Tensor& hidden)> finish;
};

class Pipeline {
 public:
  Pipeline(Collectives& ranks, PipelineOptions options, int64_t hidden_size, at::TensorOptions activations);

  /// Forward and backward of all micro-batches. `model` is told of weight gradients that were put off.
  void train(int num_microbatches, const PipelineWork& work, FullyShardedDecoder& model);
  /// Forward alone.
  void evaluate(int num_microbatches, const PipelineWork& work);

  int microbatch_multiple() const { return troupe::microbatch_multiple(options_.schedule, ranks_.size()); }
  /// What this rank did in the last call, in order.
  const std::vector<PipelineAction>& executed() const { return executed_; }

 private:
  class Run;
  Collectives& ranks_;
  PipelineOptions options_;
  int64_t hidden_size_;
  at::TensorOptions activations_;
  std::vector<PipelineAction> executed_;
};

}  // namespace troupe
