// Fully sharded data parallelism of a Decoder, per unit (embedding, each layer, final norm and head): between its uses a
// unit exists only as this rank's fp32 shard. World size 1 is the same code.
//
//   forward unit u : all-gather shard(u) -> flat parameters(u) -> body -> free (reshard), all in `parameter_dtype`
//   backward unit u: all-gather again -> body's backward -> reduce-scatter gradient(u) -> add to fp32 gradient shard -> free
#pragma once

#include "models/decoder.h"
#include "parallel/collectives.h"

namespace troupe {

struct FullyShardedOptions {
  at::ScalarType parameter_dtype = at::kFloat;  // of compute
  at::ScalarType reduce_dtype = at::kFloat;     // of gradients on the wire
  /// "default": all but the last-used unit are freed after forward when size > 1; "always"; "never".
  std::string reshard_after_forward = "default";
};

/// This rank's piece of one unit: flat, fp32, padded to a multiple of the world size.
struct UnitShard {
  int64_t unit = 0;
  Tensor parameter;  // [n] fp32 master
  Tensor gradient;   // [n] fp32, accumulated over micro-batches
};

/// Where a rank's shard meets one parameter: elements [flat_begin, flat_end) of the flattened parameter are elements
/// [shard_begin, ...) of the unit's shard.
struct ShardPiece {
  std::string name;
  int64_t unit = 0, shard_begin = 0, flat_begin = 0, flat_end = 0;
};

class FullyShardedDecoder : public UnitRunner {
 public:
  FullyShardedDecoder(Decoder& decoder, Collectives& collectives, FullyShardedOptions options);
  ~FullyShardedDecoder() override;

  /// Fills this rank's shards; `read(name)` gives a full fp32 tensor and is called once a parameter.
  void load(const std::function<Tensor(const std::string& name)>& read);

  /// Forward with gather and reshard; differentiable. Call `finish_backward` after the last backward of a step.
  Tensor forward(const Tensor& tokens_T, const PackedLayout& layout);
  Tensor run(int64_t unit, const Body& body, const Tensor& x) override;
  /// The output head's weight as a leaf in parameter_dtype, gathered for as long as the forward/backward that uses it.
  Tensor head_weight();
  /// While false, gradients stay unreduced in the units (accumulation without communication); the next backward with
  /// true reduces them all.
  void set_reduce_gradients(bool reduce);
  /// Waits for reductions, frees what is gathered; afterwards every shard's gradient is complete. Throws where a unit of
  /// the forward got no gradient.
  void finish_backward();
  void zero_gradients();

  std::vector<UnitShard>& shards();
  const std::vector<ShardPiece>& pieces() const;
  /// Global L2 norm of the gradient over all ranks (a tied parameter once), as double.
  double gradient_norm();
  /// Full tensors in `dtype`, gathered unit by unit (every rank calls; each gets them all). Tied ones once.
  TensorMap gather_weights(at::ScalarType dtype);
  /// Full fp32 gradients by name, for tests and verify.
  TensorMap gather_gradients();
  /// Highest bytes of gathered parameters at one time, for tests against the formula.
  int64_t peak_gathered_bytes() const;
  Collectives& collectives();

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace troupe
