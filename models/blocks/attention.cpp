// Self-attention of one layer. q, k and v are one product where their weights are neighbours in memory, and one buffer.
#include "models/blocks/attention.h"

#include "models/blocks/head_transform.h"
#include "models/blocks/linear.h"

namespace troupe::blocks {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The shared context inside autograd's store of saved values.
struct ContextHolder : torch::CustomClassHolder {
  explicit ContextHolder(AttentionContextPointer context) : context(std::move(context)) {}
  AttentionContextPointer context;
};

/// Lets the sinks take part in a softmax that was done without: what each head gave shrinks by the share of the rest.
void add_sinks_(kernels::AttentionResult& result, const Tensor& sinks_H, const kernels::AttentionShape& shape) {
  const Tensor with_sinks_HT =
      at::logaddexp(result.log_sum_exp, sinks_H.to(result.log_sum_exp.scalar_type()).unsqueeze(1));
  const Tensor share_TH1 = (result.log_sum_exp - with_sinks_HT).exp().t().unsqueeze(2);
  result.output.view({-1, shape.num_heads, shape.head_dim}).mul_(share_TH1);
  result.log_sum_exp = with_sinks_HT;
}

Tensor sink_gradient(const Tensor& d_output, const kernels::AttentionResult& result, const Tensor& sinks_H,
                     const kernels::AttentionShape& shape) {
  const auto type = result.log_sum_exp.scalar_type();
  const Tensor delta_TH =
      (d_output.to(type) * result.output.to(type)).view({-1, shape.num_heads, shape.head_dim}).sum(2);
  const Tensor share_HT = (sinks_H.to(type).unsqueeze(1) - result.log_sum_exp).exp();
  return -(share_HT * delta_TH.t()).sum(1).to(sinks_H.scalar_type());
}

struct AttendFunction : torch::autograd::Function<AttendFunction> {
  static Tensor forward(AutogradContext* autograd, const Tensor& projected, at::TensorList norms,
                        const std::optional<Tensor>& sinks, const AttentionContextPointer& context) {
    const Tensor rotated = transform_heads(projected, norms, *context);
    auto result = context->exchange->attention_forward(rotated, context->layout, context->shape);
    if (sinks) add_sinks_(result, *sinks, context->shape);
    variable_list saved = {rotated, result.output, result.log_sum_exp};
    if (!rotated.is_same(projected)) saved.push_back(projected);
    saved.insert(saved.end(), norms.begin(), norms.end());
    if (sinks) saved.push_back(*sinks);
    autograd->save_for_backward(std::move(saved));
    autograd->saved_data["context"] = at::IValue::make_capsule(c10::make_intrusive<ContextHolder>(context));
    autograd->saved_data["num_norms"] = static_cast<int64_t>(norms.size());
    autograd->saved_data["keeps_projected"] = !rotated.is_same(projected);
    autograd->saved_data["sinks"] = sinks.has_value();
    return result.output;
  }

  static variable_list backward(AutogradContext* autograd, variable_list gradients) {
    const auto saved = autograd->get_saved_variables();
    const auto holder = autograd->saved_data["context"].toCapsule();
    const AttentionContext& context = *c10::static_intrusive_pointer_cast<ContextHolder>(holder)->context;
    const size_t first = autograd->saved_data["keeps_projected"].toBool() ? 4 : 3;
    const auto num_norms = static_cast<size_t>(autograd->saved_data["num_norms"].toInt());
    const std::vector<Tensor> norms(saved.begin() + first, saved.begin() + first + num_norms);
    const kernels::AttentionResult result = {saved[1], saved[2]};
    const Tensor d_output = gradients[0].contiguous();
    const Tensor d_rotated =
        context.exchange->attention_backward(d_output, saved[0], result, context.layout, context.shape);
    const auto [d_projected, d_norms] =
        transform_heads_backward(d_rotated, first == 4 ? saved[3] : Tensor(), norms, context);
    variable_list gradient = {d_projected};
    gradient.insert(gradient.end(), d_norms.begin(), d_norms.end());
    const bool has_sinks = autograd->saved_data["sinks"].toBool();
    gradient.push_back(has_sinks ? sink_gradient(d_output, result, saved.back(), context.shape) : Tensor());
    gradient.emplace_back();
    return gradient;
  }
};

}  // namespace

Tensor attend(const Tensor& projected_TE, at::TensorList norms, const Tensor& sinks_H,
              const AttentionContextPointer& context) {
  return AttendFunction::apply(projected_TE, norms, sinks_H.defined() ? std::optional<Tensor>(sinks_H) : std::nullopt,
                               context);
}

Tensor self_attention(const Tensor& x_TD, const AttentionWeights& weights, const AttentionContextPointer& context) {
  const std::vector<Tensor> projections = {weights.q_HdD, weights.k_KdD, weights.v_KdD};
  std::vector<Tensor> biases, norms;
  if (weights.q_bias.defined()) biases = {weights.q_bias, weights.k_bias, weights.v_bias};
  if (weights.q_norm.defined()) norms = {weights.q_norm, weights.k_norm};
  const Tensor projected = stacked_linear(x_TD, projections, biases);
  if (!weights.has_gate) return attend(projected, norms, weights.sinks_H, context);
  const auto& shape = context->shape;
  const int64_t num_tokens = x_TD.size(0), queries = shape.num_heads * shape.head_dim;
  const Tensor with_gate = projected.narrow(1, 0, 2 * queries).view({num_tokens, shape.num_heads, 2, shape.head_dim});
  const auto half = [&](int64_t which) { return with_gate.select(2, which).reshape({num_tokens, queries}); };
  const Tensor rest = projected.narrow(1, 2 * queries, projected.size(1) - 2 * queries);
  const Tensor attended = attend(at::cat({half(0), rest}, 1), norms, weights.sinks_H, context);
  return attended * at::sigmoid(half(1));
}

}  // namespace troupe::blocks
