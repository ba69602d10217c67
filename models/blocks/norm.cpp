// RMSNorm's autograd functions; the arithmetic is in models/kernels/training_ops.
#include "models/blocks/norm.h"

#include "models/kernels/training_ops.h"

namespace troupe::blocks {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct RmsNormFunction : torch::autograd::Function<RmsNormFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x_TD, const Tensor& weight, double eps, double offset,
                        bool plainly) {
    const auto result = kernels::rms_norm(x_TD, {}, weight, eps, offset, plainly);
    context->saved_data["offset"] = offset;
    context->save_for_backward({x_TD, weight, result.inverse_rms_R});
    return result.y_RD;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto [d_x, d_weight] = kernels::rms_norm_backward(gradients[0], saved[0], saved[1], saved[2], {},
                                                            context->saved_data["offset"].toDouble());
    return {d_x, d_weight, Tensor(), Tensor(), Tensor()};
  }
};

struct AddRmsNormFunction : torch::autograd::Function<AddRmsNormFunction> {
  static variable_list forward(AutogradContext* context, const Tensor& x_TD, const Tensor& residual,
                               const Tensor& weight, double eps, double offset) {
    const auto result = kernels::rms_norm(x_TD, residual, weight, eps, offset);
    context->saved_data["offset"] = offset;
    context->save_for_backward({result.sum_RD, weight, result.inverse_rms_R});
    return {result.sum_RD, result.y_RD};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto [d_sum, d_weight] = kernels::rms_norm_backward(gradients[1], saved[0], saved[1], saved[2], gradients[0],
                                                              context->saved_data["offset"].toDouble());
    return {d_sum, d_sum, d_weight, Tensor(), Tensor()};
  }
};

}  // namespace

Tensor rms_norm(const Tensor& x_TD, const Tensor& weight_D, double eps, double offset, bool plainly) {
  return RmsNormFunction::apply(x_TD, weight_D, eps, offset, plainly);
}

std::pair<Tensor, Tensor> add_rms_norm(const Tensor& x_TD, const Tensor& residual_TD, const Tensor& weight_D,
                                       double eps, double offset) {
  const auto outputs = AddRmsNormFunction::apply(x_TD, residual_TD, weight_D, eps, offset);
  return {outputs[0], outputs[1]};
}

}  // namespace troupe::blocks
