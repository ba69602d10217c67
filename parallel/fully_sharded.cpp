// Units in forward and backward: when they are gathered, reduced and freed.
#include "parallel/fully_sharded.h"

#include "base/error.h"
#include "parallel/fully_sharded_implementation.h"
#include "parallel/reduce_kernels.h"

namespace troupe {
namespace {

/// Takes a leaf's gradient as soon as it exists.
class TakeGradient : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit TakeGradient(std::function<void(const Tensor&)> take) : take_(std::move(take)) {}
  void operator()(const torch::autograd::Variable& leaf) override {
    auto& gradient = leaf.mutable_grad();
    if (!gradient.defined()) return;  // put off
    take_(gradient);
    gradient.reset();
  }

 private:
  std::function<void(const Tensor&)> take_;
};

struct UnitClosure : torch::CustomClassHolder {
  explicit UnitClosure(std::function<void()> close) : close(std::move(close)) {}
  std::function<void()> close;
};

/// Identity on a unit's input; its backward runs after every node of the unit's body (they are younger, and the engine
/// runs the youngest ready node first).
class CloseUnit : public torch::autograd::Function<CloseUnit> {
 public:
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x,
                        const std::function<void()>& close) {
    context->saved_data["closure"] = c10::IValue::make_capsule(c10::make_intrusive<UnitClosure>(close));
    return x.view_as(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    static_cast<UnitClosure*>(context->saved_data["closure"].toCapsule().get())->close();
    return {gradients[0], Tensor()};
  }
};

bool runs_inside_backward() { return torch::autograd::get_current_graph_task_id() != -1; }

}  // namespace

FullyShardedDecoder::Implementation::Implementation(Decoder& decoder, const ParallelPlan& plan_,
                                                    const RankGroups& groups_, FullyShardedOptions options_)
    : decoder(decoder), plan(plan_), groups(groups_), collectives(groups.shards()), options(std::move(options_)) {
  const auto& mode = options.reshard_after_forward;
  if (mode != "default" && mode != "always" && mode != "never") {
    throw UsageError(concat("parallelism.fsdp_reshard_after_forward = \"", mode,
                            "\": known are \"default\", \"always\", \"never\""));
  }
  make_units();
  make_pieces();
}

void FullyShardedDecoder::Implementation::make_units() {
  std::vector<ShardedUnit::Parts> parts(num_units()), experts(num_units());
  std::vector<uint8_t> has_experts(num_units(), 0);
  for (const auto& spec : plan.whole_specs()) {
    const auto unit = static_cast<size_t>(spec.unit);
    const bool is_apart = spec.is_of_experts() && plan.spreads_experts();
    if (is_apart) has_experts[unit] = 1;
    if (!plan.holds(spec.unit)) continue;
    if (!is_apart) {
      parts[unit].emplace_back(spec, plan.part(spec));
    } else if (const auto part = plan.part_of_experts(spec, plan.place().expert)) {
      experts[unit].emplace_back(spec, *part);
    }
  }
  ShardedUnit::Options unit_options{options.parameter_dtype, options.reduce_dtype, options.device, &collectives,
                                    groups.replicas(),       groups.tensor(),      groups.tied()};
  for (size_t unit = 0; unit < num_units(); ++unit) add_unit(concat("unit ", unit), parts[unit], unit_options);
  // What comes to an expert is the gradient of all its ranks' tokens: only its shards are left to be joined.
  unit_options.tensor = unit_options.tied = nullptr;
  for (size_t unit = 0; unit < num_units(); ++unit) {
    if (has_experts[unit] == 0) continue;
    unit_options.collectives = &groups.expert_shards();
    units[unit].experts = units.size();
    add_unit(concat("experts ", unit), experts[unit], unit_options);
  }
  peak_gathered_bytes = gathered_bytes;
}

void FullyShardedDecoder::Implementation::add_unit(std::string name, const ShardedUnit::Parts& unit_parts,
                                                   const ShardedUnit::Options& unit_options) {
  const size_t index = units.size();
  units.push_back({std::move(name), std::make_unique<ShardedUnit>(unit_parts, unit_options)});
  auto& parts = *units.back().parts;
  if (parts.is_gathered()) gathered_bytes += parts.gathered_bytes();
  shards.push_back({static_cast<int64_t>(index), parts.shard(), parts.shard_gradient()});
  for (size_t parameter = 0; parameter < parts.parameters().size(); ++parameter) {
    const auto& spec = parts.parameters()[parameter].spec;
    hook_leaf(parts.leaf(parameter), index, parameter);
    leaf_places[parts.leaf(parameter).unsafeGetTensorImpl()] = {index, parameter};
    decoder.bind(spec.name, parts.leaf(parameter));
    if (spec.name == "lm_head.weight" || spec.name == "score.weight")
      std::tie(head_unit, head_parameter) = std::pair(index, parameter);
  }
}

void FullyShardedDecoder::Implementation::hook_leaf(const Tensor& leaf, size_t unit, size_t parameter) {
  // The owner takes the hook off in its destructor: a graph may outlive the model.
  torch::autograd::impl::set_post_acc_grad_hooks(
      leaf, std::make_unique<TakeGradient>([this, unit, parameter](const Tensor& gradient) {
        units[unit].parts->add_gradient(parameter, gradient);
      }));
}

void FullyShardedDecoder::Implementation::make_pieces() {
  for (size_t index = 0; index < units.size(); ++index) {
    const auto& parts = *units[index].parts;
    const int64_t begin = parts.shard_begin(), end = begin + parts.shard_numel();
    for (const auto& parameter : parts.parameters()) {
      const int64_t first = std::max(begin, parameter.begin), last = std::min(end, parameter.begin + parameter.numel);
      if (first >= last) continue;
      pieces.push_back({parameter.spec.name, static_cast<int64_t>(index), first - begin, first - parameter.begin,
                        last - parameter.begin, parameter.part.box, parameter.part.is_first});
    }
  }
}

void FullyShardedDecoder::Implementation::gather(size_t unit, const char* why) {
  gather_one(units[unit], why);
  if (units[unit].experts != kNone) gather_one(units[units[unit].experts], why);
}

void FullyShardedDecoder::Implementation::gather_one(Unit& unit, const char* why) {
  auto& parts = *unit.parts;
  if (parts.is_gathered() && !parts.is_stale()) return;
  const bool is_new = !parts.is_gathered();
  parts.gather(concat(unit.name, " ", why));
  if (is_new) gathered_bytes += parts.gathered_bytes();
  peak_gathered_bytes = std::max(peak_gathered_bytes, gathered_bytes);
}

void FullyShardedDecoder::Implementation::free(size_t unit) {
  free_one(units[unit]);
  if (units[unit].experts != kNone) free_one(units[units[unit].experts]);
}

/// What one rank holds whole stays.
void FullyShardedDecoder::Implementation::free_one(Unit& unit) {
  auto& parts = *unit.parts;
  if (!parts.is_gathered() || parts.collectives().size() == 1 || unit.holds_head) return;
  parts.free();
  gathered_bytes -= parts.gathered_bytes();
}

Tensor FullyShardedDecoder::Implementation::run(int64_t index, const UnitRunner::Body& body, const Tensor& x) {
  const auto unit = static_cast<size_t>(index);
  require(index >= 0 && unit < num_units(), "the network has no unit ", index);
  auto& state = units[unit];
  gather(unit, "forward");
  if (!at::GradMode::is_enabled()) {
    auto y = body(x);
    if (reshards(unit) && state.num_open == 0) free(unit);
    return y;
  }
  std::weak_ptr<FullyShardedDecoder::Implementation> weak = weak_from_this();
  const bool closes = x.defined() && x.requires_grad();
  auto y = body(closes ? CloseUnit::apply(x, std::function<void()>([weak, unit] {
                                            if (auto self = weak.lock()) self->after_backward(unit);
                                          }))
                       : x);
  state.was_used = true;
  if (state.experts != kNone) units[state.experts].was_used = true;
  if (!y.requires_grad()) return y;
  if (closes) ++state.num_open;
  y.register_hook([weak, unit](const Tensor&) {
    if (auto self = weak.lock()) self->before_backward(unit);
  });
  // A body that runs again inside backward stays whole: its backward follows at once.
  if (reshards(unit) && !runs_inside_backward()) free(unit);
  return y;
}

void FullyShardedDecoder::Implementation::before_backward(size_t unit) {
  // The embedding's backward needs the ids alone, not the table.
  if (unit != 0) gather(unit, "backward");
  if (unit == last_unit() && units[unit].num_open <= 1) release_head();
}

void FullyShardedDecoder::Implementation::after_backward(size_t unit) {
  auto& state = units[unit];
  state.num_open = std::max<int64_t>(0, state.num_open - 1);
  if (reduce_gradients) {
    state.parts->reduce(state.name + " gradient");
    if (state.experts != kNone) units[state.experts].parts->reduce(units[state.experts].name + " gradient");
  }
  if (options.reshard_after_forward != "never" && (unit != last_unit() || state.num_open == 0)) free(unit);
}

void FullyShardedDecoder::Implementation::release_head() {
  auto& state = units[head_unit];
  if (!state.holds_head) return;
  state.holds_head = false;
  if (head_unit != last_unit() && options.reshard_after_forward != "never") free(head_unit);
}

// -- FullyShardedDecoder ---------------------------------------------------------------------------------------------

FullyShardedDecoder::FullyShardedDecoder(Decoder& decoder, const ParallelPlan& plan, const RankGroups& groups,
                                         FullyShardedOptions options)
    : implementation_(std::make_shared<Implementation>(decoder, plan, groups, std::move(options))) {}

FullyShardedDecoder::FullyShardedDecoder(Decoder& decoder, Collectives& collectives, FullyShardedOptions options)
    : FullyShardedDecoder(decoder, ParallelPlan(decoder.config()), RankGroups(collectives), std::move(options)) {}

FullyShardedDecoder::~FullyShardedDecoder() {
  // Graphs may outlive the model: their leaves must not hand gradients to freed memory.
  for (auto& unit : implementation_->units) {
    for (size_t parameter = 0; parameter < unit.parts->parameters().size(); ++parameter) {
      torch::autograd::impl::set_post_acc_grad_hooks(unit.parts->leaf(parameter), nullptr);
    }
  }
}

void FullyShardedDecoder::load(const std::function<Tensor(const std::string& name)>& read) {
  at::NoGradGuard no_grad;
  auto& self = *implementation_;
  for (auto& unit : self.units) {
    auto& parts = *unit.parts;
    const int64_t begin = parts.shard_begin(), end = begin + parts.shard_numel();
    for (const auto& parameter : parts.parameters()) {
      const auto full = read(parameter.spec.name);
      const auto numel = c10::multiply_integers(parameter.whole_shape);
      require(full.defined() && full.numel() == numel, "weights of ", parameter.spec.name, ": ",
              full.defined() ? full.numel() : 0, " elements instead of ", numel);
      const int64_t first = std::max(begin, parameter.begin), last = std::min(end, parameter.begin + parameter.numel);
      if (first >= last) continue;
      parts.shard()
          .narrow(0, first - begin, last - first)
          .copy_(box_of(full.view(parameter.whole_shape), parameter.part.box)
                     .reshape({-1})
                     .narrow(0, first - parameter.begin, last - first));
    }
  }
  parameters_changed();
}

Tensor FullyShardedDecoder::forward(const Tensor& tokens_T, const PackedLayout& layout) {
  return implementation_->decoder.forward(tokens_T, layout, *this);
}

Tensor FullyShardedDecoder::run(int64_t unit, const Body& body, const Tensor& x) {
  return implementation_->run(unit, body, x);
}

Tensor FullyShardedDecoder::head_weight() {
  auto& self = *implementation_;
  self.gather(self.head_unit, "head");
  auto& state = self.units[self.head_unit];
  if (self.collectives.size() > 1) state.holds_head = true;
  if (!at::GradMode::is_enabled()) return state.parts->leaf(self.head_parameter);
  // A leaf of its own: the head's gradient is handed over when the loss is done, not kept until the embedding's
  // backward.
  auto leaf = state.parts->make_leaf(self.head_parameter);
  std::weak_ptr<Implementation> weak = implementation_;
  torch::autograd::impl::set_post_acc_grad_hooks(leaf, std::make_unique<TakeGradient>([weak](const Tensor& gradient) {
                                                   if (auto owner = weak.lock())
                                                     owner->units[owner->head_unit].parts->add_gradient(
                                                         owner->head_parameter, gradient);
                                                 }));
  return leaf;
}

Tensor FullyShardedDecoder::head_gradient() {
  auto& self = *implementation_;
  return self.units[self.head_unit].parts->gradient_view(self.head_parameter);
}

void FullyShardedDecoder::add_deferred(const std::vector<blocks::DeferredWeightGradients::Product>& products) {
  const at::NoGradGuard no_grad;
  auto& self = *implementation_;
  for (const auto& product : products) {
    const auto gradients =
        blocks::split_rows(blocks::weight_gradient(product.gradient_TO, product.x_TI), product.weights);
    for (size_t i = 0; i < gradients.size(); ++i) {
      const auto found = self.leaf_places.find(product.weights[i].unsafeGetTensorImpl());
      require(found != self.leaf_places.end(), "a deferred gradient belongs to no parameter of this rank");
      self.units[found->second.first].parts->add_gradient(found->second.second, gradients[i]);
    }
  }
}

void FullyShardedDecoder::set_reduce_gradients(bool reduce) { implementation_->reduce_gradients = reduce; }

void FullyShardedDecoder::finish_backward() {
  auto& self = *implementation_;
  for (size_t index = self.units.size(); index-- > 0;) {
    auto& unit = self.units[index];
    require(!unit.was_used || unit.parts->num_received() > 0, "rank ", self.collectives.rank(), ": ", unit.name,
            " took part in the forward but got no gradient; was backward called?");
    unit.parts->reduce_rest(unit.name + " gradient");
    unit.parts->complete_gradient();
    unit.was_used = false;
    unit.num_open = 0;
  }
  parameters_changed();
}

void FullyShardedDecoder::zero_gradients() {
  for (auto& unit : implementation_->units) unit.parts->zero_gradient();
}

void FullyShardedDecoder::parameters_changed() {
  auto& self = *implementation_;
  for (size_t index = 0; index < self.units.size(); ++index) {
    self.units[index].holds_head = false;
    self.units[index].parts->mark_stale();
    self.free_one(self.units[index]);
  }
}

std::vector<UnitShard>& FullyShardedDecoder::shards() {
  for (auto& unit : implementation_->units) unit.parts->complete_gradient();
  return implementation_->shards;
}

const std::vector<ShardPiece>& FullyShardedDecoder::pieces() const { return implementation_->pieces; }

double FullyShardedDecoder::gradient_norm() {
  auto& self = *implementation_;
  const auto& all = shards();
  double local = 0;
  if (self.groups.copy().size() == self.collectives.size()) {
    for (const auto& shard : all) local += sum_of_squares(shard.gradient);
  } else {
    // What several ranks hold counts once.
    for (const auto& piece : self.pieces) {
      if (piece.is_first)
        local += sum_of_squares(all[static_cast<size_t>(piece.unit)].gradient.narrow(
            0, piece.shard_begin, piece.flat_end - piece.flat_begin));
    }
  }
  auto total = at::full({1}, local, at::TensorOptions(at::kDouble).device(self.options.device));
  if (self.groups.copy().size() > 1) self.groups.copy().all_reduce(total, "gradient norm");
  return std::sqrt(total.item<double>());
}

TensorMap FullyShardedDecoder::gather_weights(at::ScalarType dtype) {
  return implementation_->gather_full(dtype, false);
}

TensorMap FullyShardedDecoder::borrow_weights(at::ScalarType dtype) {
  auto& self = *implementation_;
  const bool of_masters = dtype == at::kFloat;
  if (self.groups.copy().size() > 1 || (!of_masters && dtype != self.options.parameter_dtype))
    return gather_weights(dtype);
  TensorMap tensors;
  if (of_masters) {
    for (const auto& piece : self.pieces) {
      tensors[piece.name] = self.shards[static_cast<size_t>(piece.unit)]
                                .parameter.narrow(0, piece.shard_begin, piece.flat_end - piece.flat_begin)
                                .view(piece.part.size);
    }
    return tensors;
  }
  for (size_t index = 0; index < self.units.size(); ++index) {
    self.gather_one(self.units[index], "weights");
    const auto& parts = *self.units[index].parts;
    for (size_t parameter = 0; parameter < parts.parameters().size(); ++parameter)
      tensors[parts.parameters()[parameter].spec.name] = parts.leaf(parameter).detach();
  }
  return tensors;
}

TensorMap FullyShardedDecoder::gather_gradients() {
  shards();  // gradients never received become zero
  return implementation_->gather_full(at::kFloat, true);
}

int64_t FullyShardedDecoder::peak_gathered_bytes() const { return implementation_->peak_gathered_bytes; }

void FullyShardedDecoder::reset_peak_gathered_bytes() {
  implementation_->peak_gathered_bytes = implementation_->gathered_bytes;
}

const Decoder& FullyShardedDecoder::decoder() const { return implementation_->decoder; }

const ParallelPlan& FullyShardedDecoder::plan() const { return implementation_->plan; }

Collectives& FullyShardedDecoder::collectives() { return implementation_->collectives; }

}  // namespace troupe
