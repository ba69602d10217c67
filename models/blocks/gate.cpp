// Gated products: SiLU by its kernel, the others by tensor operations in fp32 (float64 for float64).
#include "models/blocks/gate.h"

#include "models/kernels/training_ops.h"

namespace troupe::blocks {
namespace {

bool is_swiglu(const GateForm& form) {
  return form.activation == Activation::kSilu && !form.take_turns && form.clamp_limit == 0;
}

Tensor widened(const Tensor& x) { return x.to(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat); }

struct GateUp {
  Tensor gate, up;
};

GateUp split(const Tensor& gate_up, const GateForm& form) {
  const int64_t size = gate_up.size(1);
  if (form.take_turns) return {widened(gate_up.slice(1, 0, size, 2)), widened(gate_up.slice(1, 1, size, 2))};
  return {widened(gate_up.narrow(1, 0, size / 2)), widened(gate_up.narrow(1, size / 2, size / 2))};
}

Tensor joined(const Tensor& gate, const Tensor& up, const GateForm& form) {
  return form.take_turns ? at::stack({gate, up}, 2).flatten(1) : at::cat({gate, up}, 1);
}

const char* gelu_form(Activation activation) { return activation == Activation::kGeluTanh ? "tanh" : "none"; }

Tensor activate(const Tensor& gate, const GateForm& form) {
  return form.activation == Activation::kSilu ? at::silu(gate) : at::gelu(gate, gelu_form(form.activation));
}

}  // namespace

Tensor gate_product(const Tensor& gate_up, const GateForm& form) {
  if (is_swiglu(form)) return kernels::swiglu(gate_up);
  const auto [gate, up] = split(gate_up, form);
  if (form.clamp_limit == 0) return (activate(gate, form) * up).to(gate_up.scalar_type());
  const Tensor clamped = gate.clamp_max(form.clamp_limit), bounded = up.clamp(-form.clamp_limit, form.clamp_limit);
  return ((bounded + 1) * clamped * at::sigmoid(clamped * form.swish_factor)).to(gate_up.scalar_type());
}

std::pair<Tensor, Tensor> gate_backward(const Tensor& gate_up, const Tensor& d_product, const GateForm& form) {
  if (is_swiglu(form)) return kernels::swiglu_backward(gate_up, d_product);
  const auto [gate, up] = split(gate_up, form);
  const Tensor d = widened(d_product);
  const auto type = gate_up.scalar_type();
  if (form.clamp_limit == 0) {
    const Tensor activated = activate(gate, form);
    const Tensor d_activated = d * up;
    const Tensor d_gate = form.activation == Activation::kSilu
                              ? at::silu_backward(d_activated, gate)
                              : at::gelu_backward(d_activated, gate, gelu_form(form.activation));
    return {(activated * up).to(type), joined(d_gate, d * activated, form).to(type)};
  }
  const Tensor clamped = gate.clamp_max(form.clamp_limit), bounded = up.clamp(-form.clamp_limit, form.clamp_limit);
  const Tensor sigmoid = at::sigmoid(clamped * form.swish_factor), swish = clamped * sigmoid;
  const Tensor slope = sigmoid + form.swish_factor * swish * (1 - sigmoid);
  const Tensor d_gate = (d * (bounded + 1) * slope).masked_fill(gate.gt(form.clamp_limit), 0);
  const Tensor d_up = (d * swish).masked_fill(up.abs().gt(form.clamp_limit), 0);
  return {((bounded + 1) * swish).to(type), joined(d_gate, d_up, form).to(type)};
}

}  // namespace troupe::blocks
