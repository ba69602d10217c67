// Linear maps; the products are oneDNN's (CPU) or cuBLAS's, reached through at::mm.
#include "models/blocks/linear.h"

#include "base/error.h"

namespace troupe::blocks {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct LinearFunction : torch::autograd::Function<LinearFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight,
                        const std::optional<Tensor>& bias) {
    context->save_for_backward({x, weight});
    context->saved_data["bias"] = bias.has_value();
    return bias ? at::addmm(*bias, x, weight.t()) : at::mm(x, weight.t());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor gradient = gradients[0].contiguous();
    Tensor d_x, d_weight, d_bias;
    if (context->needs_input_grad(0)) d_x = at::mm(gradient, saved[1]);
    if (context->needs_input_grad(1)) d_weight = weight_gradients(gradient, saved[0], {saved[1]})[0];
    if (context->saved_data["bias"].toBool()) d_bias = gradient.sum(0);
    return {d_x, d_weight, d_bias};
  }
};

struct StackedLinearFunction : torch::autograd::Function<StackedLinearFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x, at::TensorList weights, at::TensorList biases) {
    const Tensor weight = stack_rows(weights).t();
    variable_list saved = {x};
    saved.insert(saved.end(), weights.begin(), weights.end());
    context->save_for_backward(std::move(saved));
    context->saved_data["biases"] = !biases.empty();
    return biases.empty() ? at::mm(x, weight) : at::addmm(stack_rows(biases), x, weight);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const std::vector<Tensor> weights(saved.begin() + 1, saved.end());
    const Tensor gradient = gradients[0].contiguous();
    variable_list result = {at::mm(gradient, stack_rows(weights))};
    const auto append = [&](const std::vector<Tensor>& parts) {
      result.insert(result.end(), parts.begin(), parts.end());
    };
    append(weight_gradients(gradient, saved[0], weights));
    if (context->saved_data["biases"].toBool()) append(split_rows(gradient.sum(0), weights));
    return result;
  }
};

thread_local DeferredWeightGradients* deferred = nullptr;

bool are_neighbours(at::TensorList tensors) {
  int64_t next = tensors[0].storage_offset();
  for (const Tensor& tensor : tensors) {
    if (!tensor.is_contiguous() || !tensor.storage().is_alias_of(tensors[0].storage())) return false;
    if (tensor.storage_offset() != next) return false;
    next += tensor.numel();
  }
  return true;
}

}  // namespace

Tensor linear(const Tensor& x_TI, const Tensor& weight_OI, const Tensor& bias_O) {
  return LinearFunction::apply(x_TI, weight_OI, bias_O.defined() ? std::optional<Tensor>(bias_O) : std::nullopt);
}

Tensor stacked_linear(const Tensor& x_TI, at::TensorList weights, at::TensorList biases) {
  return StackedLinearFunction::apply(x_TI, weights, biases);
}

Tensor stack_rows(at::TensorList weights) {
  const at::NoGradGuard no_grad;
  if (weights.size() == 1) return weights[0].detach();
  if (!are_neighbours(weights)) return at::cat(weights);
  int64_t rows = 0;
  for (const Tensor& weight : weights) rows += weight.size(0);
  std::vector<int64_t> shape = weights[0].sizes().vec();
  shape[0] = rows;
  return weights[0].detach().as_strided(shape, weights[0].strides());
}

Tensor stack_biases(at::TensorList biases) {
  const auto num_defined = std::count_if(biases.begin(), biases.end(), [](const Tensor& b) { return b.defined(); });
  if (num_defined == 0) return {};
  require(num_defined == static_cast<int64_t>(biases.size()), "a layer has biases for only some of its joined weights");
  return stack_rows(biases);
}

Tensor weight_gradient(const Tensor& gradient_TO, const Tensor& x_TI) { return at::mm(gradient_TO.t(), x_TI); }

std::vector<Tensor> split_rows(const Tensor& gradient, at::TensorList weights) {
  std::vector<Tensor> parts;
  int64_t row = 0;
  for (const Tensor& weight : weights) {
    parts.push_back(gradient.narrow(0, row, weight.size(0)));
    row += weight.size(0);
  }
  return parts;
}

std::vector<Tensor> weight_gradients(const Tensor& gradient_TO, const Tensor& x_TI, at::TensorList weights) {
  if (deferred == nullptr) return split_rows(weight_gradient(gradient_TO, x_TI), weights);
  deferred->products_.push_back({weights.vec(), gradient_TO, x_TI});
  return std::vector<Tensor>(weights.size());
}

DeferredWeightGradients::DeferredWeightGradients() : outer_(std::exchange(deferred, this)) {}
DeferredWeightGradients::~DeferredWeightGradients() { deferred = outer_; }

}  // namespace troupe::blocks
