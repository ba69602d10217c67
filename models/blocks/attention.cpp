// Self-attention of one layer. q, k and v are one product where their weights are neighbours in memory, and one buffer.
#include "models/blocks/attention.h"

#include "models/blocks/head_transform.h"
#include "models/blocks/linear.h"

namespace troupe::blocks {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using Context = std::shared_ptr<const AttentionContext>;

/// The shared context inside autograd's store of saved values.
struct ContextHolder : torch::CustomClassHolder {
  explicit ContextHolder(Context context) : context(std::move(context)) {}
  Context context;
};

struct SelfAttentionFunction : torch::autograd::Function<SelfAttentionFunction> {
  /// `biases` holds three tensors or none, `norms` two or none.
  static Tensor forward(AutogradContext* autograd, const Tensor& x, at::TensorList weights, at::TensorList biases,
                        at::TensorList norms, const Context& context) {
    const Tensor weight = stack_rows(weights).t();
    const Tensor projected = biases.empty() ? at::mm(x, weight) : at::addmm(stack_rows(biases), x, weight);
    const Tensor rotated = transform_heads(projected, norms, *context);
    const auto result = context->exchange->attention_forward(rotated, context->layout, context->shape);
    variable_list saved = {x, weights[0], weights[1], weights[2], rotated, result.output, result.log_sum_exp};
    if (!norms.empty()) saved.insert(saved.end(), {norms[0], norms[1], projected});
    autograd->save_for_backward(std::move(saved));
    autograd->saved_data["context"] = at::IValue::make_capsule(c10::make_intrusive<ContextHolder>(context));
    autograd->saved_data["biases"] = !biases.empty();
    return result.output;
  }

  static variable_list backward(AutogradContext* autograd, variable_list gradients) {
    const auto saved = autograd->get_saved_variables();
    const auto holder = autograd->saved_data["context"].toCapsule();
    const AttentionContext& context = *c10::static_intrusive_pointer_cast<ContextHolder>(holder)->context;
    const std::vector<Tensor> weights = {saved[1], saved[2], saved[3]};
    const bool has_norms = saved.size() > 7;
    const std::vector<Tensor> norms = has_norms ? std::vector<Tensor>{saved[7], saved[8]} : std::vector<Tensor>{};
    const Tensor d_rotated = context.exchange->attention_backward(gradients[0].contiguous(), saved[4],
                                                                  {saved[5], saved[6]}, context.layout, context.shape);
    const auto [d_projected, d_norms] =
        transform_heads_backward(d_rotated, has_norms ? saved[9] : Tensor(), norms, context);
    variable_list result = {at::mm(d_projected, stack_rows(weights))};
    const auto append = [&](const std::vector<Tensor>& parts) {
      result.insert(result.end(), parts.begin(), parts.end());
    };
    append(weight_gradients(d_projected, saved[0], weights));
    if (autograd->saved_data["biases"].toBool()) append(split_rows(d_projected.sum(0), weights));
    append(d_norms);
    result.emplace_back();
    return result;
  }
};

}  // namespace

Tensor self_attention(const Tensor& x_TD, const AttentionWeights& weights,
                      std::shared_ptr<const AttentionContext> context) {
  const std::vector<Tensor> projections = {weights.q_HdD, weights.k_KdD, weights.v_KdD};
  std::vector<Tensor> biases, norms;
  if (weights.q_bias.defined()) biases = {weights.q_bias, weights.k_bias, weights.v_bias};
  if (weights.q_norm_d.defined()) norms = {weights.q_norm_d, weights.k_norm_d};
  return SelfAttentionFunction::apply(x_TD, at::TensorList(projections), at::TensorList(biases), at::TensorList(norms),
                                      context);
}

}  // namespace troupe::blocks
