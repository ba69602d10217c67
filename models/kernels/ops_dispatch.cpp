// Argument checks and choice of device for the ops of training (rms_norm, fused_adamw_), and the helpers that
// ops_dispatch_decode.cpp shares. No arithmetic here.
#include "models/kernels/ops_dispatch.h"

#include "base/error.h"
#include "models/kernels/ops_cpu.h"

namespace troupe::ops {

DeviceOps& cuda_ops() {
  static DeviceOps table;
  return table;
}

bool dispatches_to_cuda(const Tensor& tensor, const char* op) {
  if (tensor.is_cpu()) return false;
  require(tensor.is_cuda(), "ops::", op, ": no implementation for tensors on ", tensor.device().str());
  require(cuda_ops().rms_norm_function != nullptr, "ops::", op, ": a tensor is on ", tensor.device().str(),
          " but the CUDA kernels are not there; build with the cuda preset (and call register_cuda at start-up)");
  return true;
}

void check_tensor(const Tensor& tensor, const Tensor& same_device_as, const char* op, const char* name) {
  require(tensor.defined(), "ops::", op, ": ", name, " is undefined");
  require(tensor.device() == same_device_as.device(), "ops::", op, ": ", name, " is on ", tensor.device().str(),
          ", the others are on ", same_device_as.device().str());
  require(!(at::GradMode::is_enabled() && tensor.requires_grad()), "ops::", op, ": ", name,
          " requires a gradient, but the op has no backward; call it under NoGradGuard or inside an autograd function");
}

void check_float(const Tensor& tensor, const char* op, const char* name) {
  require(tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kBFloat16, "ops::", op, ": ", name,
          " must be float32 or bfloat16, is ", at::toString(tensor.scalar_type()));
}

void check_dtype(const Tensor& tensor, at::ScalarType dtype, const char* op, const char* name) {
  require(tensor.scalar_type() == dtype, "ops::", op, ": ", name, " must be ", at::toString(dtype), ", is ",
          at::toString(tensor.scalar_type()));
}

void check_shape(const Tensor& tensor, at::IntArrayRef shape, const char* op, const char* name) {
  require(tensor.sizes() == shape, "ops::", op, ": ", name, " must have shape ", shape, ", has ", tensor.sizes());
}

void check_contiguous(const Tensor& tensor, const char* op, const char* name) {
  require(tensor.is_contiguous(), "ops::", op, ": ", name, " must be contiguous, has strides ", tensor.strides());
}

void check_dense_rows(const Tensor& tensor, const char* op, const char* name) {
  require(tensor.size(0) == 0 || tensor.select(0, 0).is_contiguous(), "ops::", op, ": the last two dimensions of ",
          name, " must be contiguous, strides are ", tensor.strides());
}

Tensor rms_norm(const Tensor& x_TD, const Tensor& weight_D, double eps) {
  const char* op = "rms_norm";
  check_tensor(x_TD, x_TD, op, "x");
  check_tensor(weight_D, x_TD, op, "weight");
  check_float(x_TD, op, "x");
  check_dtype(weight_D, x_TD.scalar_type(), op, "weight");
  require(x_TD.dim() == 2, "ops::rms_norm: x must be [T, D], has shape ", x_TD.sizes());
  check_shape(weight_D, {x_TD.size(1)}, op, "weight");
  const Tensor x = x_TD.contiguous(), weight = weight_D.contiguous();
  return dispatches_to_cuda(x, op) ? cuda_ops().rms_norm_function(x, weight, eps) : cpu::rms_norm(x, weight, eps);
}

void fused_adamw_(Tensor& parameter, const Tensor& gradient, Tensor& exp_avg, Tensor& exp_avg_sq,
                  const AdamWArguments& arguments) {
  const char* op = "fused_adamw_";
  require(parameter.defined(), "ops::fused_adamw_: parameter is undefined");
  for (const auto& [tensor, name] : {std::pair<const Tensor&, const char*>{parameter, "parameter"},
                                     {exp_avg, "exp_avg"},
                                     {exp_avg_sq, "exp_avg_sq"}}) {
    check_tensor(tensor, parameter, op, name);
    check_dtype(tensor, at::kFloat, op, name);
    check_shape(tensor, parameter.sizes(), op, name);
    check_contiguous(tensor, op, name);
  }
  check_tensor(gradient, parameter, op, "gradient");
  check_float(gradient, op, "gradient");
  check_shape(gradient, parameter.sizes(), op, "gradient");
  require(arguments.step >= 1, "ops::fused_adamw_: step counts from 1, is ", arguments.step);
  const Tensor dense_gradient = gradient.contiguous();
  const auto function = dispatches_to_cuda(parameter, op) ? cuda_ops().fused_adamw_function : &cpu::fused_adamw_;
  function(parameter, dense_gradient, exp_avg, exp_avg_sq, arguments);
}

}  // namespace troupe::ops
