// The CPU sides of ops::rms_norm and ops::fused_adamw_.
#include <cmath>

#include "models/kernels/ops_cpu.h"
#include "models/kernels/training_ops.h"

namespace troupe::ops::cpu {

Tensor rms_norm(const Tensor& x_TD, const Tensor& weight_D, double eps) {
  return kernels::rms_norm(x_TD, {}, weight_D, eps).y_RD;
}

void fused_adamw_(Tensor& parameter, const Tensor& gradient, Tensor& exp_avg, Tensor& exp_avg_sq,
                  const AdamWArguments& arguments) {
  kernels::AdamWConstants constants;
  const auto step = static_cast<double>(arguments.step);
  constants.decay = static_cast<float>(1 - arguments.lr * arguments.weight_decay);
  constants.beta1 = static_cast<float>(arguments.beta1);
  constants.beta2 = static_cast<float>(arguments.beta2);
  constants.step_size = static_cast<float>(arguments.lr / (1 - std::pow(arguments.beta1, step)));
  constants.second_scale = static_cast<float>(1 / std::sqrt(1 - std::pow(arguments.beta2, step)));
  constants.eps = static_cast<float>(arguments.eps);
  constants.gradient_scale = static_cast<float>(arguments.gradient_scale);
  const auto kernel = kernels::element_kernels(gradient).adamw;
  float* p = parameter.mutable_data_ptr<float>();
  float* m = exp_avg.mutable_data_ptr<float>();
  float* v = exp_avg_sq.mutable_data_ptr<float>();
  const auto* g = static_cast<const char*>(gradient.const_data_ptr());
  const auto element_size = static_cast<int64_t>(gradient.element_size());
  at::parallel_for(0, parameter.numel(), 1 << 14, [&](int64_t begin, int64_t end) {
    kernel(p + begin, g + begin * element_size, m + begin, v + begin, end - begin, constants);
  });
}

}  // namespace troupe::ops::cpu
