// What the halves of FullyShardedDecoder share: its units and what is under way with them. Internal to parallel/.
//
//   fully_sharded.cpp   units in forward and backward: when they are gathered, reduced and freed
//   gather_full.cpp     whole tensors from all ranks' parts
#pragma once

#include "parallel/fully_sharded.h"
#include "parallel/sharded_unit.h"

namespace troupe {

struct FullyShardedDecoder::Implementation : std::enable_shared_from_this<FullyShardedDecoder::Implementation> {
  static constexpr size_t kNone = static_cast<size_t>(-1);
  /// A unit and what is under way with it, or a unit's experts where they lie over ranks of their own.
  struct Unit {
    std::string name;
    std::unique_ptr<ShardedUnit> parts;
    size_t experts = kNone;   // where its experts are among the units
    int64_t num_open = 0;     // forwards under gradients whose backward has not closed yet
    bool was_used = false;    // by a forward under gradients, since finish_backward
    bool holds_head = false;  // gathered for the head: stays until the final norm's backward
  };

  Implementation(Decoder& decoder, const ParallelPlan& plan, const RankGroups& groups, FullyShardedOptions options);
  void make_units();
  void add_unit(std::string name, const ShardedUnit::Parts& parts, const ShardedUnit::Options& unit_options);
  void hook_leaf(const Tensor& leaf, size_t unit, size_t parameter);
  void make_pieces();

  Tensor run(int64_t index, const UnitRunner::Body& body, const Tensor& x);
  void gather(size_t unit, const char* why);
  void gather_one(Unit& unit, const char* why);
  void free(size_t unit);
  void free_one(Unit& unit);
  void before_backward(size_t unit);
  void after_backward(size_t unit);
  void release_head();
  TensorMap gather_full(at::ScalarType dtype, bool gradients);
  Tensor gather_shards(size_t unit, at::ScalarType dtype, bool gradients);
  using Boxes = std::vector<std::pair<std::string, TensorBox>>;  // parts by name, in order
  void place_parts(const Tensor& parts, Collectives* group, const std::function<Boxes(int rank)>& boxes_of,
                   const TensorMap& wholes, const std::string& label);
  void place_unit(size_t unit, const Tensor& parts, const Tensor& experts, const TensorMap& wholes);
  void place_constants(size_t unit, bool is_owner, int owner, TensorMap& of_unit);

  size_t num_units() const { return static_cast<size_t>(plan.num_units()); }  // of the network
  size_t last_unit() const { return num_units() - 1; }
  bool reshards(size_t unit) const {
    return options.reshard_after_forward != "never" &&
           (options.reshard_after_forward == "always" || unit != last_unit());
  }

  Decoder& decoder;
  ParallelPlan plan;
  RankGroups groups;
  Collectives& collectives;  // the groups' shards
  FullyShardedOptions options;
  std::vector<Unit> units;  // the network's, then the experts that lie apart
  std::vector<UnitShard> shards;
  std::vector<ShardPiece> pieces;
  std::map<const at::TensorImpl*, std::pair<size_t, size_t>> leaf_places;  // unit and parameter
  size_t head_unit = 0, head_parameter = 0;                                // where the head's weight lives
  bool reduce_gradients = true;
  int64_t gathered_bytes = 0, peak_gathered_bytes = 0;
};

/// View of a part of a whole tensor.
inline Tensor box_of(const Tensor& whole, const TensorBox& box) {
  Tensor part = whole;
  for (size_t i = 0; i < box.start.size(); ++i) part = part.narrow(static_cast<int64_t>(i), box.start[i], box.size[i]);
  return part;
}

}  // namespace troupe
