// RMSNorm forward and backward. CPU tensors in fp32 and bf16 use the kernels of models/kernels; anything else plain
// tensor operations.
#include "models/blocks/norm.h"

namespace troupe::blocks {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::ScalarType statistics_type(const Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

struct Normalised {
  Tensor y, inverse_rms;  // inverse_rms: [rows]
};

Normalised normalise(const Tensor& x_RD, const Tensor& weight, double eps) {
  const Tensor wide = x_RD.to(statistics_type(x_RD));
  const Tensor inverse_rms = (wide.square().mean(1) + eps).rsqrt();
  const Tensor y = (wide * inverse_rms.unsqueeze(1) * weight.to(wide.scalar_type())).to(x_RD.scalar_type());
  return {y, inverse_rms};
}

/// Adds the norm's input gradient to `d_residual` (where defined) and returns it with the weight's gradient.
std::pair<Tensor, Tensor> normalise_backward(const Tensor& d_y, const Tensor& x_RD, const Tensor& weight,
                                             const Tensor& inverse_rms, const Tensor& d_residual) {
  const auto type = statistics_type(x_RD);
  const Tensor normed = x_RD.to(type) * inverse_rms.unsqueeze(1);
  const Tensor wide_d_y = d_y.to(type);
  const Tensor d_normed = wide_d_y * weight.to(type);
  Tensor d_x = inverse_rms.unsqueeze(1) * (d_normed - normed * (d_normed * normed).mean(1, true));
  if (d_residual.defined()) d_x = d_x + d_residual.to(type);
  return {d_x.to(x_RD.scalar_type()), (wide_d_y * normed).sum(0).to(weight.scalar_type())};
}

struct RmsNormFunction : torch::autograd::Function<RmsNormFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight, double eps) {
    const Tensor rows = x.reshape({-1, x.size(-1)});
    const Normalised result = normalise(rows, weight, eps);
    context->save_for_backward({rows, weight, result.inverse_rms});
    return result.y.view(x.sizes());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor d_y = gradients[0].reshape(saved[0].sizes());
    const auto [d_x, d_weight] = normalise_backward(d_y, saved[0], saved[1], saved[2], {});
    return {d_x.view(gradients[0].sizes()), d_weight, Tensor()};
  }
};

struct AddRmsNormFunction : torch::autograd::Function<AddRmsNormFunction> {
  static variable_list forward(AutogradContext* context, const Tensor& x, const Tensor& residual, const Tensor& weight,
                               double eps) {
    const Tensor sum = x + residual;
    const Normalised result = normalise(sum, weight, eps);
    context->save_for_backward({sum, weight, result.inverse_rms});
    return {sum, result.y};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto [d_sum, d_weight] = normalise_backward(gradients[1], saved[0], saved[1], saved[2], gradients[0]);
    return {d_sum, d_sum, d_weight, Tensor()};
  }
};

}  // namespace

Tensor rms_norm(const Tensor& x, const Tensor& weight_D, double eps) {
  return RmsNormFunction::apply(x, weight_D, eps);
}

std::pair<Tensor, Tensor> rms_norm_backward(const Tensor& d_y, const Tensor& x, const Tensor& weight_D, double eps) {
  const Tensor rows = x.reshape({-1, x.size(-1)});
  const Tensor inverse_rms = (rows.to(statistics_type(x)).square().mean(1) + eps).rsqrt();
  const auto [d_x, d_weight] = normalise_backward(d_y.reshape(rows.sizes()), rows, weight_D, inverse_rms, {});
  return {d_x.view(x.sizes()), d_weight};
}

std::pair<Tensor, Tensor> add_rms_norm(const Tensor& x_TD, const Tensor& residual_TD, const Tensor& weight_D,
                                       double eps) {
  const auto outputs = AddRmsNormFunction::apply(x_TD, residual_TD, weight_D, eps);
  return {outputs[0], outputs[1]};
}

}  // namespace troupe::blocks
