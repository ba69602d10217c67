#include "parallel/tensor_parallel.h"

#include "models/blocks/embedding.h"

namespace troupe {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Tensor gather(const Tensor& x, Collectives& group) {
  const Tensor part = x.detach().contiguous();
  auto shape = part.sizes().vec();
  shape[0] *= group.size();
  Tensor whole = at::empty(shape, part.options());
  group.all_gather(whole, part, "tokens of the tensor ranks");
  return whole;
}

Tensor scatter(const Tensor& y, Collectives& group) {
  const Tensor whole = y.detach().contiguous();
  auto shape = whole.sizes().vec();
  shape[0] /= group.size();
  Tensor part = at::empty(shape, whole.options());
  group.reduce_scatter(part, whole, "sums of the tensor ranks");
  return part;
}

Tensor sum(const Tensor& y, Collectives& group) {
  Tensor total = y.detach().clone(at::MemoryFormat::Contiguous);
  group.all_reduce(total, "sums of the tensor ranks");
  return total;
}

int64_t address(Collectives& group) { return reinterpret_cast<int64_t>(&group); }
Collectives& group_of(AutogradContext* context) {
  return *reinterpret_cast<Collectives*>(context->saved_data["group"].toInt());
}

struct EnterFunction : torch::autograd::Function<EnterFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x, int64_t group, bool sequence_parallel) {
    context->saved_data["group"] = group;
    context->saved_data["sequence_parallel"] = sequence_parallel;
    return sequence_parallel ? gather(x, group_of(context)) : x.view_as(x);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const bool sequence_parallel = context->saved_data["sequence_parallel"].toBool();
    auto& group = group_of(context);
    return {sequence_parallel ? scatter(gradients[0], group) : sum(gradients[0], group), Tensor(), Tensor()};
  }
};

struct LeaveFunction : torch::autograd::Function<LeaveFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& y, int64_t group, bool sequence_parallel) {
    context->saved_data["group"] = group;
    context->saved_data["sequence_parallel"] = sequence_parallel;
    return sequence_parallel ? scatter(y, group_of(context)) : sum(y, group_of(context));
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const bool sequence_parallel = context->saved_data["sequence_parallel"].toBool();
    return {sequence_parallel ? gather(gradients[0], group_of(context)) : gradients[0], Tensor(), Tensor()};
  }
};

}  // namespace

Tensor enter_tensor_parallel(const Tensor& x_TD, Collectives& tensor, bool sequence_parallel) {
  return EnterFunction::apply(x_TD, address(tensor), sequence_parallel);
}

Tensor leave_tensor_parallel(const Tensor& y_TD, Collectives& tensor, bool sequence_parallel) {
  return LeaveFunction::apply(y_TD, address(tensor), sequence_parallel);
}

Tensor embed_part(const Tensor& tokens_T, const Tensor& weight_VD, int64_t begin) {
  const Tensor local = tokens_T.to(at::kLong) - begin;
  const Tensor outside = local.lt(0).logical_or(local.ge(weight_VD.size(0))).unsqueeze(1);
  const Tensor rows = blocks::embedding(local.clamp(0, weight_VD.size(0) - 1), weight_VD);
  return rows.masked_fill(outside, 0);
}

}  // namespace troupe
