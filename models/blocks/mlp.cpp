// The gated MLP. gate and up are one product where their weights are neighbours in memory.
#include "models/blocks/mlp.h"

#include "models/blocks/linear.h"

namespace troupe::blocks {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct GatedMlpFunction : torch::autograd::Function<GatedMlpFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& gate, const Tensor& up,
                        const Tensor& down, const std::optional<Tensor>& gate_bias,
                        const std::optional<Tensor>& up_bias, const std::optional<Tensor>& down_bias,
                        Activation activation) {
    const Tensor bias = stack_biases({gate_bias.value_or(Tensor()), up_bias.value_or(Tensor())});
    const Tensor weight = stack_rows({gate, up}).t();
    const Tensor gate_up = bias.defined() ? at::addmm(bias, x, weight) : at::mm(x, weight);
    const Tensor product = gate_product(gate_up, {activation});
    context->save_for_backward({x, gate, up, down, gate_up});
    context->saved_data["activation"] = static_cast<int64_t>(activation);
    context->saved_data["bias"] = bias.defined();
    context->saved_data["down_bias"] = down_bias.has_value();
    return down_bias ? at::addmm(*down_bias, product, down.t()) : at::mm(product, down.t());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor &x = saved[0], &gate = saved[1], &up = saved[2], &down = saved[3];
    const Tensor d_y = gradients[0].contiguous();
    const GateForm form = {static_cast<Activation>(context->saved_data["activation"].toInt())};
    const auto [product, d_gate_up] = gate_backward(saved[4], at::mm(d_y, down), form);
    const Tensor d_down = weight_gradients(d_y, product, {down})[0];
    const auto d_weights = weight_gradients(d_gate_up, x, {gate, up});
    const Tensor d_x = at::mm(d_gate_up, stack_rows({gate, up}));
    variable_list d_bias(2), d_down_bias(1);
    if (context->saved_data["bias"].toBool()) d_bias = split_rows(d_gate_up.sum(0), {gate, up});
    if (context->saved_data["down_bias"].toBool()) d_down_bias[0] = d_y.sum(0);
    return {d_x, d_weights[0], d_weights[1], d_down, d_bias[0], d_bias[1], d_down_bias[0], Tensor()};
  }
};

std::optional<Tensor> optional(const Tensor& tensor) {
  return tensor.defined() ? std::optional<Tensor>(tensor) : std::nullopt;
}

}  // namespace

Tensor gated_mlp(const Tensor& x_TD, const MlpWeights& weights, Activation activation) {
  return GatedMlpFunction::apply(x_TD, weights.gate_FD, weights.up_FD, weights.down_DF, optional(weights.gate_bias_F),
                                 optional(weights.up_bias_F), optional(weights.down_bias_D), activation);
}

}  // namespace troupe::blocks
