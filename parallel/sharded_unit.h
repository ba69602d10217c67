// A unit's parameters, or those of its experts alone, as one flat buffer: this rank's fp32 shard, the gathered copy
// whose leaves the network computes with, and the gradient on its way from the leaves to the shard. Decides nothing
// about when (parallel/fully_sharded.cpp).
//
//   flat [padded]: | parameter 0 | parameter 1 | ... | padding |     parameters contiguous, in parameter_specs order
//   shards         |   rank 0    |   rank 1    |   rank 2      |     equal parts
//
// What is not trained has a leaf in fp32 of its own: the few numbers that a router adds to its scores.
#pragma once

#include "models/config.h"
#include "models/torch.h"
#include "parallel/collectives.h"
#include "parallel/plan.h"

namespace troupe {

class ShardedUnit {
 public:
  struct Options {
    at::ScalarType parameter_dtype = at::kFloat, reduce_dtype = at::kFloat;
    at::Device device = at::kCPU;
    Collectives* collectives = nullptr;
    Collectives* replicas = nullptr;  // may be null, as the two below
    Collectives* tensor = nullptr;    // for parameters whose part says that its gradient sums over them
    Collectives* tied = nullptr;
  };
  struct Parameter {
    ParameterSpec spec;                // of this rank's part
    std::vector<int64_t> whole_shape;  // of which it is `part`
    ParameterPart part;
    int64_t begin = 0, numel = 0;  // elements in the flat buffer
    int64_t constants_begin = -1;  // of one that is not trained, in the constants
  };

  /// Whole parameters and this rank's part of each.
  using Parts = std::vector<std::pair<ParameterSpec, ParameterPart>>;
  ShardedUnit(const Parts& parts, Options options);

  // -- parameters --
  /// Over which the buffer is sharded.
  Collectives& collectives() const { return *options_.collectives; }
  const std::vector<Parameter>& parameters() const { return parameters_; }
  int64_t shard_numel() const { return shard_numel_; }
  int64_t shard_begin() const { return shard_numel_ * options_.collectives->rank(); }
  Tensor& shard() { return shard_; }
  Tensor& shard_gradient() { return shard_gradient_; }
  /// The leaf that the network computes with; its memory exists only while gathered.
  const Tensor& leaf(size_t parameter) const { return leaves_[parameter]; }
  /// A further leaf over the same memory with a gradient of its own on the way to the same place.
  Tensor make_leaf(size_t parameter) const;

  bool is_gathered() const { return gathered_; }
  bool is_alias() const { return alias_; }
  int64_t gathered_bytes() const {
    return padded_numel() * static_cast<int64_t>(c10::elementSize(options_.parameter_dtype));
  }
  /// All-gathers the shards, cast to the parameter dtype before they travel.
  void gather(const std::string& label);
  /// Whole parameters that are not trained, one behind the other in fp32 (undefined where the unit has none); every
  /// rank of the shards calls.
  Tensor gather_constants(const std::string& label);
  void free();
  /// The gathered copy no longer equals the shards.
  void mark_stale() { stale_ = constants_stale_ = true; }
  bool is_stale() const { return stale_; }

  // -- gradients --
  /// Adds a parameter's gradient to the unreduced buffer (the shard itself for one rank).
  void add_gradient(size_t parameter, const Tensor& gradient);
  /// fp32 view of the place where the parameter's gradient accumulates; counts as a gradient received.
  Tensor gradient_view(size_t parameter);
  bool has_unreduced() const { return unreduced_.defined(); }
  /// Reduce-scatters what was added since the last call and adds it to the shard's gradient.
  void reduce(const std::string& label);
  /// At the end of a step: also where nothing was added, if other ranks wait for this rank's part of a sum.
  void reduce_rest(const std::string& label);
  /// Parameters that got no gradient since zero_gradient become zero.
  void complete_gradient();
  void zero_gradient();
  int64_t num_received() const { return num_received_; }

 private:
  int64_t padded_numel() const { return shard_numel_ * options_.collectives->size(); }
  bool is_alone() const { return options_.collectives->size() == 1 && options_.replicas == nullptr && !sums_parts_; }
  /// Adds up the gradients of which other tensor ranks or the other end of the pipeline have parts.
  void sum_parts(const std::string& label);
  void allocate_flat();
  int64_t num_constants() const;

  Options options_;
  std::vector<Parameter> parameters_;
  int64_t shard_numel_ = 0;
  bool sums_parts_ = false;  // some gradient is a part of a sum
  bool alias_ = false;       // leaves are views of the shard
  bool gathered_ = false, stale_ = true;
  Tensor shard_, shard_gradient_;
  Tensor flat_;
  Tensor constants_;  // fp32, as gather_constants gives them, where the flat buffer is narrower: stays when it is freed
  bool constants_stale_ = true;
  std::vector<Tensor> leaves_;
  Tensor unreduced_;            // fp32 [padded], only between a backward and its reduction
  std::vector<uint8_t> fresh_;  // by parameter: its place holds old values that the next gradient overwrites
  bool shard_fresh_ = true;     // the same for the whole shard gradient (more than one rank)
  int64_t num_received_ = 0;
};

}  // namespace troupe
