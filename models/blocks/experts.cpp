// Experts as products over slices of the sorted tokens.
#include "models/blocks/experts.h"

#include "models/blocks/gate.h"
#include "models/blocks/linear.h"

namespace troupe::blocks {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// (token, choice) pairs in the order of their experts.
struct Sorted {
  Tensor order;               // of the flattened [T, K]
  Tensor tokens;              // of each pair
  std::vector<int64_t> ends;  // by expert
};

Sorted sort_pairs(const Tensor& experts_TK, int64_t num_experts) {
  Sorted sorted;
  const Tensor flat = experts_TK.flatten();
  sorted.order = std::get<1>(at::sort(flat, /*stable=*/std::optional<bool>(true), 0, /*descending=*/false));
  sorted.tokens = sorted.order.div(experts_TK.size(1), "floor");
  const Tensor ends = at::bincount(flat, {}, num_experts).cumsum(0).to(at::kCPU).contiguous();
  sorted.ends.assign(ends.const_data_ptr<int64_t>(), ends.const_data_ptr<int64_t>() + num_experts);
  return sorted;
}

template <class Body>
void for_experts(const Sorted& sorted, const Body& body) {
  int64_t begin = 0;
  for (size_t expert = 0; expert < sorted.ends.size(); ++expert) {
    const int64_t end = sorted.ends[expert];
    if (end > begin) body(static_cast<int64_t>(expert), begin, end - begin);
    begin = end;
  }
}

/// [E, in, out] whatever the form; a view where separate weights are neighbours in memory.
Tensor input_by_output(const std::vector<Tensor>& weights, ExpertForm form, int64_t num_experts) {
  if (form == ExpertForm::kStacked) return weights[0].detach();
  const Tensor rows = stack_rows(weights);
  return rows.view({num_experts, -1, rows.size(1)}).transpose(1, 2);
}

/// Space for the gradient, and the same seen as [E, in, out].
struct GradientSpace {
  Tensor whole, input_by_output;
};

GradientSpace gradient_space(const std::vector<Tensor>& weights, ExpertForm form, int64_t num_experts) {
  GradientSpace space;
  if (form == ExpertForm::kSeparate) {
    int64_t rows = 0;
    for (const Tensor& weight : weights) rows += weight.size(0);
    space.whole = at::zeros({rows, weights[0].size(1)}, weights[0].options());
    space.input_by_output = space.whole.view({num_experts, -1, weights[0].size(1)}).transpose(1, 2);
  } else {
    space.whole = space.input_by_output = at::zeros(weights[0].sizes(), weights[0].options());
  }
  return space;
}

std::vector<Tensor> gradients_of(const GradientSpace& space, const std::vector<Tensor>& weights, ExpertForm form) {
  if (form == ExpertForm::kSeparate) return split_rows(space.whole, weights);
  return {space.whole};
}

struct Shape {
  int64_t num_experts, num_gate_up;
  ExpertForm form;
  bool weighs_input;
  GateForm gate;
};

/// [pairs, out] = each expert's rows of x times its matrix (+ its bias).
Tensor multiply(const Sorted& sorted, const Tensor& x, const Tensor& weights_EIO, const Tensor& bias_EO) {
  const Tensor y = at::empty({x.size(0), weights_EIO.size(2)}, x.options());
  for_experts(sorted, [&](int64_t expert, int64_t begin, int64_t count) {
    Tensor out = y.narrow(0, begin, count);
    const Tensor rows = x.narrow(0, begin, count);
    if (bias_EO.defined()) {
      at::addmm_out(out, bias_EO[expert], rows, weights_EIO[expert]);
    } else {
      at::mm_out(out, rows, weights_EIO[expert]);
    }
  });
  return y;
}

/// Adds up the K rows of each token -> [T, D].
Tensor gather_tokens(const Sorted& sorted, const Tensor& rows, const Tensor& experts_TK) {
  return sum_choices(at::empty_like(rows).index_copy_(0, sorted.order, rows), experts_TK.size(1));
}

struct ExpertsFunction : torch::autograd::Function<ExpertsFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& experts_TK, const Tensor& weights_TK,
                        at::TensorList parameters, const std::optional<Tensor>& gate_up_bias,
                        const std::optional<Tensor>& down_bias, const Shape& shape) {
    const Sorted sorted = sort_pairs(experts_TK, shape.num_experts);
    const Tensor weight = weights_TK.flatten().index_select(0, sorted.order).unsqueeze(1).to(x.scalar_type());
    const auto [gate_up_EIO, down_EIO] = matrices(parameters, shape);
    Tensor rows = x.index_select(0, sorted.tokens);
    if (shape.weighs_input) rows = rows * weight;
    const Tensor gate_up = multiply(sorted, rows, gate_up_EIO, gate_up_bias.value_or(Tensor()));
    Tensor y = multiply(sorted, gate_product(gate_up, shape.gate), down_EIO, down_bias.value_or(Tensor()));
    if (!shape.weighs_input) y = y * weight;
    variable_list saved = {x, experts_TK, weights_TK, gate_up};
    saved.insert(saved.end(), parameters.begin(), parameters.end());
    if (gate_up_bias) saved.insert(saved.end(), {*gate_up_bias, *down_bias});
    context->save_for_backward(std::move(saved));
    context->saved_data["shape"] = at::IValue::make_capsule(c10::make_intrusive<ShapeHolder>(shape));
    context->saved_data["bias"] = gate_up_bias.has_value();
    return gather_tokens(sorted, y, experts_TK);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor &x = saved[0], &experts_TK = saved[1], &weights_TK = saved[2], &gate_up = saved[3];
    const Shape& shape =
        c10::static_intrusive_pointer_cast<ShapeHolder>(context->saved_data["shape"].toCapsule())->shape;
    const bool has_bias = context->saved_data["bias"].toBool();
    const auto parameters_end = saved.end() - (has_bias ? 2 : 0);
    const std::vector<Tensor> parameters(saved.begin() + 4, parameters_end);
    const Sorted sorted = sort_pairs(experts_TK, shape.num_experts);
    const auto type = weights_TK.scalar_type();
    const Tensor weight = weights_TK.flatten().index_select(0, sorted.order).unsqueeze(1).to(x.scalar_type());
    const auto [gate_up_EIO, down_EIO] = matrices(parameters, shape);
    const Tensor d_rows = gradients[0].index_select(0, sorted.tokens);  // of the pairs' outputs after weighing
    Tensor rows = x.index_select(0, sorted.tokens);
    if (shape.weighs_input) rows = rows * weight;

    Tensor d_product = multiply(sorted, d_rows, down_EIO.transpose(1, 2), {});
    Tensor d_y = d_rows;
    const Tensor unweighed = d_product;
    if (!shape.weighs_input) {
      d_product = d_product * weight;
      d_y = d_y * weight;
    }
    const auto [product, d_gate_up] = gate_backward(gate_up, d_product, shape.gate);
    Tensor d_x = multiply(sorted, d_gate_up, gate_up_EIO.transpose(1, 2), {});
    Tensor d_weight;
    if (shape.weighs_input) {
      d_weight = (d_x.to(type) * x.index_select(0, sorted.tokens).to(type)).sum(1);
      d_x = d_x * weight;
    } else {
      d_weight = (unweighed.to(type) * product.to(type)).sum(1);
    }
    const std::vector<Tensor> gate_ups(parameters.begin(), parameters.begin() + shape.num_gate_up);
    const std::vector<Tensor> downs(parameters.begin() + shape.num_gate_up, parameters.end());
    const GradientSpace d_gate_ups = gradient_space(gate_ups, shape.form, shape.num_experts);
    const GradientSpace d_downs = gradient_space(downs, shape.form, shape.num_experts);
    Tensor d_gate_up_bias, d_down_bias;
    if (has_bias) {
      d_gate_up_bias = at::zeros_like(parameters_end[0]);
      d_down_bias = at::zeros_like(parameters_end[1]);
    }
    for_experts(sorted, [&](int64_t expert, int64_t begin, int64_t count) {
      const auto part = [&](const Tensor& all) { return all.narrow(0, begin, count); };
      d_gate_ups.input_by_output[expert].copy_(at::mm(part(rows).t(), part(d_gate_up)));
      d_downs.input_by_output[expert].copy_(at::mm(part(product).t(), part(d_y)));
      if (!has_bias) return;
      d_gate_up_bias[expert].copy_(part(d_gate_up).sum(0));
      d_down_bias[expert].copy_(part(d_y).sum(0));
      const Tensor of_bias = at::mv(part(d_rows).to(type), parameters_end[1][expert].to(type));
      if (!shape.weighs_input) part(d_weight).add_(of_bias);
    });
    const Tensor d_weights_TK =
        at::empty_like(d_weight).index_copy_(0, sorted.order, d_weight).view(weights_TK.sizes());
    variable_list result = {gather_tokens(sorted, d_x, experts_TK), Tensor(), d_weights_TK};
    for (const auto& gradient : gradients_of(d_gate_ups, gate_ups, shape.form)) result.push_back(gradient);
    for (const auto& gradient : gradients_of(d_downs, downs, shape.form)) result.push_back(gradient);
    result.insert(result.end(), {d_gate_up_bias, d_down_bias, Tensor()});
    return result;
  }

 private:
  struct ShapeHolder : torch::CustomClassHolder {
    explicit ShapeHolder(const Shape& shape) : shape(shape) {}
    Shape shape;
  };

  static std::pair<Tensor, Tensor> matrices(at::TensorList parameters, const Shape& shape) {
    const std::vector<Tensor> gate_up(parameters.begin(), parameters.begin() + shape.num_gate_up);
    const std::vector<Tensor> down(parameters.begin() + shape.num_gate_up, parameters.end());
    return {input_by_output(gate_up, shape.form, shape.num_experts),
            input_by_output(down, shape.form, shape.num_experts)};
  }
};

}  // namespace

Tensor sum_choices(const Tensor& rows, int64_t num_choices) {
  const auto type = rows.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const int64_t num_tokens = rows.size(0) / num_choices;
  return at::sum(rows.view({num_tokens, num_choices, rows.size(1)}), 1, false, type).to(rows.scalar_type());
}

Tensor experts(const Tensor& x_TD, const Routing& routing, const ExpertWeights& weights, const MoeConfig& config,
               Activation activation) {
  std::vector<Tensor> parameters = weights.gate_up;
  parameters.insert(parameters.end(), weights.down.begin(), weights.down.end());
  const auto optional = [](const Tensor& bias) { return bias.defined() ? std::optional<Tensor>(bias) : std::nullopt; };
  const Shape shape = {config.num_held(),
                       static_cast<int64_t>(weights.gate_up.size()),
                       config.form,
                       config.score == RouterScore::kSigmoidInput,
                       {activation, config.gate_up_take_turns, config.clamp_limit, config.swish_factor}};
  return ExpertsFunction::apply(x_TD, routing.experts_TK, routing.weights_TK, at::TensorList(parameters),
                                optional(weights.gate_up_bias), optional(weights.down_bias), shape);
}

}  // namespace troupe::blocks
