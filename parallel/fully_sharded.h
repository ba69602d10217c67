// Fully sharded data parallelism of a Decoder, per unit (embedding, each layer, final norm and head): between its uses
// a unit exists only as this rank's fp32 shard. World size 1 is the same code.
//
//   forward unit u : all-gather shard(u) -> flat parameters(u) in `parameter_dtype` -> body -> free (reshard)
//   backward unit u: all-gather again -> body's backward -> reduce-scatter gradient(u) -> add to fp32 shard -> free
//
// How backward finds its moments: a hook on the unit's output gathers before its backward; an identity function on its
// input, older than every node of the body and therefore run after them, closes it; hooks on the leaves hand each
// gradient over as soon as it exists (added in fp32, then freed), so running a body again in backward counts nothing
// twice.
//
// Experts that are spread over ranks (parallel/mesh.h) are sharded over other ranks than the rest of their unit: they
// are a buffer of their own, gathered, reduced and freed with it.
//
// One rank alone: a unit is gathered by one cast after the shards changed, never freed, and gradients are added
// straight to the shard; with fp32 compute the leaves are the shard itself.
#pragma once

#include "models/blocks/linear.h"
#include "models/decoder.h"
#include "parallel/plan.h"
#include "parallel/rank_groups.h"

namespace troupe {

struct FullyShardedOptions {
  at::ScalarType parameter_dtype = at::kFloat;  // of compute
  at::ScalarType reduce_dtype = at::kFloat;     // of gradients on the wire
  /// "default": all but the last-used unit are freed after forward when size > 1; "always"; "never" (gathered once
  /// until the shards change). Anything else is a UsageError.
  std::string reshard_after_forward = "default";
  at::Device device = at::kCPU;
};

/// This rank's piece of one unit, or of a unit's experts where they lie over ranks of their own: flat, fp32, padded to
/// a multiple of the number of ranks that it is sharded over.
struct UnitShard {
  int64_t unit = 0;  // the network's; from its number of units on: of experts that lie apart
  Tensor parameter;  // [n] fp32 master
  Tensor gradient;   // [n] fp32, accumulated over micro-batches; complete after finish_backward
};

/// Where a rank's shard meets one parameter: elements [flat_begin, flat_end) of this rank's flattened part of the
/// parameter are elements [shard_begin, ...) of the unit's shard.
struct ShardPiece {
  std::string name;
  int64_t unit = 0, shard_begin = 0, flat_begin = 0, flat_end = 0;
  TensorBox part;        // this rank's part of the whole parameter
  bool is_first = true;  // of the ranks that hold these elements in one copy of the model
};

class FullyShardedDecoder : public UnitRunner {
 public:
  /// Holds what `plan` gives this rank, sharded over the groups' shard and context ranks; gradients are summed over
  /// replicas too (HSDP). `decoder` is built from the plan's local configuration; it and the groups must outlive this.
  FullyShardedDecoder(Decoder& decoder, const ParallelPlan& plan, const RankGroups& groups,
                      FullyShardedOptions options);
  /// Everything, sharded over `collectives` alone.
  FullyShardedDecoder(Decoder& decoder, Collectives& collectives, FullyShardedOptions options);
  ~FullyShardedDecoder() override;

  /// Fills this rank's shards; `read(name)` gives a full fp32 tensor and is called once a parameter.
  void load(const std::function<Tensor(const std::string& name)>& read);

  /// Forward with gather and reshard; differentiable. Recompute goes around it: `decoder().forward(tokens, layout,
  /// runner)` with a RecomputeRunner whose inner runner is this object; a unit is then gathered once for both its
  /// second forward and its backward. Call `finish_backward` after the last backward of a step.
  Tensor forward(const Tensor& tokens_T, const PackedLayout& layout);
  Tensor run(int64_t unit, const Body& body, const Tensor& x) override;
  /// The output head's weight as a leaf in parameter_dtype; may be asked for before or after the forward. Stays
  /// gathered until the backward of the final norm, or, without gradients, until `finish_backward` or
  /// `parameters_changed`.
  Tensor head_weight();
  /// fp32 [V, D] into which an operator may add the head's gradient itself, instead of giving it to autograd (which
  /// would make a whole gradient per chunk of the loss). Valid until the backward of the final norm.
  Tensor head_gradient();
  /// Computes weight gradients that a backward put off (models/blocks/linear.h) and adds them where they belong.
  void add_deferred(const std::vector<blocks::DeferredWeightGradients::Product>& products);
  /// While false, gradients stay unreduced in the units (accumulation without communication); the next backward with
  /// true reduces them all.
  void set_reduce_gradients(bool reduce);
  /// Waits for reductions, frees what is gathered; afterwards every shard's gradient is complete. Throws where a unit
  /// of the forward got no gradient.
  void finish_backward();
  void zero_gradients();
  /// Call after writing to the shards' parameters; what is gathered is old from then on. `load` and `finish_backward`
  /// imply it (an optimizer step is expected to follow).
  void parameters_changed();

  std::vector<UnitShard>& shards();
  const std::vector<ShardPiece>& pieces() const;
  /// Global L2 norm of the gradient over all ranks (a tied parameter once), as double.
  double gradient_norm();
  /// Full tensors in `dtype` (see dtype_of), gathered unit by unit over shards, tensor ranks and stages (every rank of
  /// a copy calls; each gets them all). Tied ones once.
  TensorMap gather_weights(at::ScalarType dtype);
  /// The same for a reader that is done before the parameters change again: where one rank holds everything, nothing is
  /// copied for fp32 (the masters) and for the parameter dtype (the tensors that the next forward computes with).
  TensorMap borrow_weights(at::ScalarType dtype);
  /// Full fp32 gradients by name, for tests and verify.
  TensorMap gather_gradients();
  /// Highest bytes of gathered parameters at one time (since the last call of reset), for tests against the formula.
  int64_t peak_gathered_bytes() const;
  void reset_peak_gathered_bytes();
  const Decoder& decoder() const;
  const ParallelPlan& plan() const;
  /// Those over which the shards lie (of experts that lie apart: the groups' expert shards).
  Collectives& collectives();

 private:
  struct Implementation;
  std::shared_ptr<Implementation> implementation_;  // graphs hold weak references
};

}  // namespace troupe
