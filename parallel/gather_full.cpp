// Whole tensors of a network from the parts that its ranks hold: over shards, then over tensor and expert ranks, then
// over stages.
#include "base/error.h"
#include "parallel/fully_sharded_implementation.h"

namespace troupe {

/// This rank's whole part of a unit or of its experts, flat (padded).
Tensor FullyShardedDecoder::Implementation::gather_shards(size_t unit, at::ScalarType dtype, bool gradients) {
  auto& parts = *units[unit].parts;
  const auto& source = gradients ? parts.shard_gradient() : parts.shard();
  auto& group = parts.collectives();
  auto whole = at::empty({parts.shard_numel() * group.size()}, source.options().dtype(dtype));
  auto own = whole.narrow(0, parts.shard_begin(), parts.shard_numel());
  own.copy_(source);
  if (group.size() > 1)
    group.all_gather(whole, own, units[unit].name + (gradients ? " full gradient" : " full weights"));
  return whole;
}

/// Gathers the parts (flat, as theirs are) of every rank of a group, or takes this rank's alone, and copies them to
/// their places.
void FullyShardedDecoder::Implementation::place_parts(const Tensor& parts, Collectives* group,
                                                      const std::function<Boxes(int rank)>& boxes_of,
                                                      const TensorMap& wholes, const std::string& label) {
  const int size = group == nullptr ? 1 : group->size(), own_rank = group == nullptr ? 0 : group->rank();
  const auto numel_of = [](const Boxes& boxes) {
    int64_t numel = 0;
    for (const auto& [name, box] : boxes) numel += c10::multiply_integers(box.size);
    return numel;
  };
  std::vector<Boxes> boxes;
  int64_t longest = 0;
  for (int rank = 0; rank < size; ++rank) {
    boxes.push_back(boxes_of(rank));
    longest = std::max(longest, numel_of(boxes.back()));
  }
  auto all = parts;
  if (group != nullptr) {
    all = at::empty({size * longest}, parts.options());
    const int64_t numel = numel_of(boxes[static_cast<size_t>(own_rank)]);
    auto own = all.narrow(0, own_rank * longest, longest);
    own.narrow(0, 0, numel).copy_(parts.narrow(0, 0, numel));
    group->all_gather(all, own, label);
  }
  for (int rank = 0; rank < size; ++rank) {
    int64_t begin = rank * longest;
    for (const auto& [name, box] : boxes[static_cast<size_t>(rank)]) {
      const auto numel = c10::multiply_integers(box.size);
      box_of(wholes.at(name), box).copy_(all.narrow(0, begin, numel).view(box.size));
      begin += numel;
    }
  }
}

/// A unit's parts, and those of its experts where they lie apart, to their places.
void FullyShardedDecoder::Implementation::place_unit(size_t unit, const Tensor& parts, const Tensor& experts,
                                                     const TensorMap& wholes) {
  const bool is_apart = experts.defined();
  const auto of_unit = [&](const std::function<void(const ParameterSpec& spec)>& visit) {
    for (const auto& spec : plan.whole_specs())
      if (spec.unit == static_cast<int64_t>(unit)) visit(spec);
  };
  const auto boxes_of = [&](int rank) {
    Boxes boxes;
    of_unit([&](const ParameterSpec& spec) {
      if (!is_apart || !spec.is_of_experts()) boxes.emplace_back(spec.name, plan.part(spec, rank).box);
    });
    return boxes;
  };
  place_parts(parts, groups.tensor(), boxes_of, wholes, units[unit].name + " parts of the tensor ranks");
  if (!is_apart) return;
  const auto boxes_of_experts = [&](int rank) {
    Boxes boxes;
    of_unit([&](const ParameterSpec& spec) {
      if (!spec.is_of_experts()) return;
      if (const auto part = plan.part_of_experts(spec, rank)) boxes.emplace_back(spec.name, part->box);
    });
    return boxes;
  };
  place_parts(experts, groups.experts(), boxes_of_experts, wholes, units[unit].name + " of the expert ranks");
}

TensorMap FullyShardedDecoder::Implementation::gather_full(at::ScalarType dtype, bool gradients) {
  at::NoGradGuard no_grad;
  TensorMap tensors;
  for (size_t index = 0; index < num_units(); ++index) {
    // One buffer a unit; the tensors are views of it.
    int64_t numel = 0;
    for (const auto& spec : plan.whole_specs())
      if (spec.unit == static_cast<int64_t>(index)) numel += c10::multiply_integers(spec.shape);
    const int owner = plan.owner(static_cast<int64_t>(index));
    const bool is_owner = owner == plan.place().pipeline;
    Tensor whole;
    if (is_owner) whole = gather_shards(index, dtype, gradients);
    const size_t apart = units[index].experts;
    const bool is_split = groups.tensor() != nullptr || apart != kNone;
    const auto parts = whole;
    if (!is_owner || is_split) whole = at::empty({numel}, shards[index].parameter.options().dtype(dtype));
    TensorMap of_unit;
    int64_t begin = 0;
    for (const auto& spec : plan.whole_specs()) {
      if (spec.unit != static_cast<int64_t>(index)) continue;
      const auto length = c10::multiply_integers(spec.shape);
      of_unit[spec.name] = whole.narrow(0, begin, length).view(spec.shape);
      begin += length;
    }
    if (is_owner && is_split)
      place_unit(index, parts, apart == kNone ? Tensor() : gather_shards(apart, dtype, gradients), of_unit);
    if (groups.pipeline() != nullptr) {
      auto values = whole.narrow(0, 0, numel);
      groups.pipeline()->broadcast(values, owner, concat("unit ", index, " of its stage"));
    }
    if (!gradients && dtype != at::kFloat && dtype != at::kDouble) place_constants(index, is_owner, owner, of_unit);
    tensors.merge(of_unit);
  }
  return tensors;
}

/// Puts what is not trained of a unit among its tensors in fp32, in place of its narrowed values.
void FullyShardedDecoder::Implementation::place_constants(size_t unit, bool is_owner, int owner, TensorMap& of_unit) {
  std::vector<ParameterSpec> constants;
  int64_t numel = 0;
  for (const auto& spec : plan.whole_specs()) {
    if (spec.unit != static_cast<int64_t>(unit) || spec.is_trained) continue;
    constants.push_back(spec);
    numel += c10::multiply_integers(spec.shape);
  }
  if (constants.empty()) return;
  const auto label = concat("unit ", unit, " full weights");
  Tensor values;
  if (is_owner) {
    values = units[unit].parts->gather_constants(label);
    require(values.numel() == numel, "unit ", unit, ": constants are not split over tensor ranks");
  } else {
    values = at::empty({numel}, shards[unit].parameter.options());
  }
  if (groups.pipeline() != nullptr) groups.pipeline()->broadcast(values, owner, label + " constants of its stage");
  int64_t begin = 0;
  for (const auto& spec : constants) {
    const auto length = c10::multiply_integers(spec.shape);
    of_unit[spec.name] = values.narrow(0, begin, length).view(spec.shape);
    begin += length;
  }
}

}  // namespace troupe
