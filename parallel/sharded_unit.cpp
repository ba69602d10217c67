#include "parallel/sharded_unit.h"

#include "base/error.h"
#include "parallel/reduce_kernels.h"

namespace troupe {

ShardedUnit::ShardedUnit(const Parts& parts, Options options) : options_(options) {
  int64_t numel = 0;
  for (const auto& [whole, part] : parts) {
    Parameter parameter{whole, whole.shape, part, numel, 0};
    parameter.spec.shape = parameter.part.box.size;
    parameter.numel = c10::multiply_integers(parameter.spec.shape);
    numel += parameter.numel;
    const bool sums_over_tied = parameter.part.sums_over_tied && options_.tied != nullptr;
    sums_parts_ = sums_parts_ || parameter.part.sums_over_tensor || sums_over_tied;
    parameters_.push_back(std::move(parameter));
  }
  int64_t constants = 0;
  for (auto& parameter : parameters_) {
    if (parameter.spec.is_trained) continue;
    parameter.constants_begin = constants;
    constants += parameter.numel;
  }
  const int64_t size = options_.collectives->size();
  shard_numel_ = (numel + size - 1) / size;
  const auto fp32 = at::TensorOptions(at::kFloat).device(options_.device);
  shard_ = at::zeros({shard_numel_}, fp32);
  shard_gradient_ = at::zeros({shard_numel_}, fp32);
  fresh_.assign(parameters_.size(), 0);
  shard_fresh_ = false;
  alias_ = size == 1 && options_.parameter_dtype == at::kFloat;
  // variable_data: own version counter, so that writing the gathered values is no change that autograd objects to.
  flat_ = alias_ ? shard_.variable_data() : at::empty({padded_numel()}, fp32.dtype(options_.parameter_dtype));
  if (!alias_ && constants > 0) constants_ = at::zeros({constants}, fp32);
  for (size_t index = 0; index < parameters_.size(); ++index) leaves_.push_back(make_leaf(index));
  gathered_ = alias_;
  if (!alias_) {
    gathered_ = true;
    free();
  }
}

Tensor ShardedUnit::make_leaf(size_t index) const {
  const auto& parameter = parameters_[index];
  const bool is_constant = parameter.constants_begin >= 0 && constants_.defined();
  return (is_constant ? constants_.narrow(0, parameter.constants_begin, parameter.numel)
                      : flat_.narrow(0, parameter.begin, parameter.numel))
      .view(parameter.spec.shape)
      .variable_data()
      .set_requires_grad(true);
}

void ShardedUnit::allocate_flat() {
  auto* storage = flat_.storage().unsafeGetStorageImpl();
  const auto bytes = static_cast<size_t>(gathered_bytes());
  storage->set_data_ptr_noswap(storage->allocator()->allocate(bytes));
  storage->set_nbytes(bytes);
}

void ShardedUnit::gather(const std::string& label) {
  if (gathered_ && !stale_) return;
  at::NoGradGuard no_grad;
  if (!alias_) {
    if (!gathered_) allocate_flat();
    auto whole = flat_.variable_data();
    auto own = whole.narrow(0, shard_begin(), shard_numel_);
    own.copy_(shard_);
    if (options_.collectives->size() > 1) options_.collectives->all_gather(whole, own, label);
    if (constants_.defined() && constants_stale_) {
      constants_.variable_data().copy_(gather_constants(label));
      constants_stale_ = false;
    }
  }
  gathered_ = true;
  stale_ = false;
}

int64_t ShardedUnit::num_constants() const {
  int64_t count = 0;
  for (const auto& parameter : parameters_) count += parameter.spec.is_trained ? 0 : parameter.numel;
  return count;
}

Tensor ShardedUnit::gather_constants(const std::string& label) {
  if (num_constants() == 0) return {};
  at::NoGradGuard no_grad;
  // Each rank gives the elements of its shard and zeros for the others': their sum is exact.
  auto values = at::zeros({num_constants()}, shard_.options());
  const int64_t begin = shard_begin(), end = begin + shard_numel_;
  for (const auto& parameter : parameters_) {
    const int64_t first = std::max(begin, parameter.begin), last = std::min(end, parameter.begin + parameter.numel);
    if (parameter.spec.is_trained || first >= last) continue;
    values.narrow(0, parameter.constants_begin + first - parameter.begin, last - first)
        .copy_(shard_.narrow(0, first - begin, last - first));
  }
  if (options_.collectives->size() > 1) options_.collectives->all_reduce(values, label + " constants");
  return values;
}

void ShardedUnit::free() {
  if (alias_ || !gathered_) return;
  auto* storage = flat_.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(at::DataPtr(nullptr, options_.device));
  storage->set_nbytes(0);
  gathered_ = false;
}

Tensor ShardedUnit::gradient_view(size_t index) {
  const auto& parameter = parameters_[index];
  ++num_received_;
  if (is_alone()) {
    auto view = shard_gradient_.narrow(0, parameter.begin, parameter.numel);
    if (fresh_[index]) view.zero_();
    fresh_[index] = 0;
    return view.view(parameter.spec.shape);
  }
  if (!unreduced_.defined()) unreduced_ = at::zeros({padded_numel()}, shard_.options());
  return unreduced_.narrow(0, parameter.begin, parameter.numel).view(parameter.spec.shape);
}

void ShardedUnit::add_gradient(size_t index, const Tensor& gradient) {
  at::NoGradGuard no_grad;
  if (is_alone() && fresh_[index]) {
    fresh_[index] = 0;
    ++num_received_;
    auto place = shard_gradient_.narrow(0, parameters_[index].begin, parameters_[index].numel);
    accumulate_gradient(place, gradient, true);
    return;
  }
  auto place = gradient_view(index);
  accumulate_gradient(place, gradient, false);
}

void ShardedUnit::sum_parts(const std::string& label) {
  struct Place {
    Tensor gradient, in_sum;  // of one parameter: here, and where it lies in the sum
  };
  std::vector<Place> places;
  int64_t numel = 0;
  for (const auto& parameter : parameters_)
    if (parameter.part.sums_over_tensor) numel += c10::multiply_integers(parameter.whole_shape);
  const Tensor sum = at::zeros({numel}, unreduced_.options());
  numel = 0;
  for (const auto& parameter : parameters_) {
    if (!parameter.part.sums_over_tensor) continue;
    // Ranks that hold different parts (repeated key heads) each add to their own place in the whole.
    const auto whole_numel = c10::multiply_integers(parameter.whole_shape);
    Tensor in_sum = sum.narrow(0, numel, whole_numel).view(parameter.whole_shape);
    const auto& box = parameter.part.box;
    for (size_t i = 0; i < box.start.size(); ++i)
      in_sum = in_sum.narrow(static_cast<int64_t>(i), box.start[i], box.size[i]);
    places.push_back({unreduced_.narrow(0, parameter.begin, parameter.numel).view(parameter.spec.shape), in_sum});
    places.back().in_sum.copy_(places.back().gradient);
    numel += whole_numel;
  }
  if (numel > 0) {
    Tensor total = sum;
    options_.tensor->all_reduce(total, label + " over tensor ranks");
    for (const auto& place : places) place.gradient.copy_(place.in_sum);
  }
  const bool is_tied = std::any_of(parameters_.begin(), parameters_.end(),
                                   [](const Parameter& parameter) { return parameter.part.sums_over_tied; });
  if (is_tied && options_.tied != nullptr) options_.tied->all_reduce(unreduced_, label + " over tied stages");
}

void ShardedUnit::reduce(const std::string& label) {
  if (!unreduced_.defined()) return;
  at::NoGradGuard no_grad;
  if (sums_parts_) sum_parts(label);
  const auto wire = unreduced_.to(options_.reduce_dtype);
  unreduced_.reset();
  Tensor reduced;
  if (options_.collectives->size() > 1) {
    reduced = at::empty({shard_numel_}, wire.options());
    options_.collectives->reduce_scatter(reduced, wire, label);
  } else {
    reduced = wire;
  }
  if (options_.replicas != nullptr && options_.replicas->size() > 1) options_.replicas->all_reduce(reduced, label);
  accumulate_gradient(shard_gradient_, reduced, shard_fresh_);
  shard_fresh_ = false;
}

void ShardedUnit::reduce_rest(const std::string& label) {
  const bool is_tied = options_.tied != nullptr && std::any_of(parameters_.begin(), parameters_.end(),
                                                               [](const auto& p) { return p.part.sums_over_tied; });
  if (is_tied && !unreduced_.defined()) unreduced_ = at::zeros({padded_numel()}, shard_.options());
  reduce(label);
}

void ShardedUnit::complete_gradient() {
  if (shard_fresh_) shard_gradient_.zero_();
  shard_fresh_ = false;
  for (size_t index = 0; index < fresh_.size(); ++index) {
    if (fresh_[index]) shard_gradient_.narrow(0, parameters_[index].begin, parameters_[index].numel).zero_();
    fresh_[index] = 0;
  }
}

void ShardedUnit::zero_gradient() {
  unreduced_.reset();
  num_received_ = 0;
  if (is_alone()) {
    std::fill(fresh_.begin(), fresh_.end(), uint8_t{1});
  } else {
    shard_fresh_ = true;
  }
}

}  // namespace troupe
