// Two differentiable moves, there and back, around one exchange of counts.
#include "parallel/expert_parallel.h"

#include "models/blocks/experts.h"

namespace troupe {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Where this rank's pairs go, and how many rows come from and go to each rank.
struct Route : torch::CustomClassHolder {
  Collectives* group = nullptr;
  int64_t num_choices = 0;
  Tensor order, tokens;                 // of this rank's pairs by expert: place in the flattened [T, K], and token
  std::vector<int64_t> sent, received;  // rows, by rank
  Tensor experts_N1;                    // of the rows received, counted from this rank's first

  Tensor to_experts(const Tensor& rows, const char* label) const { return move(rows, sent, received, label); }
  Tensor to_home(const Tensor& rows, const char* label) const { return move(rows, received, sent, label); }
  /// Rows by expert -> [T, D].
  Tensor sum_by_token(const Tensor& rows) const {
    return blocks::sum_choices(at::empty_like(rows).index_copy_(0, order, rows), num_choices);
  }

 private:
  Tensor move(const Tensor& rows, const std::vector<int64_t>& from_here, const std::vector<int64_t>& to_here,
              const char* label) const {
    auto shape = rows.sizes().vec();
    shape[0] = c10::sum_integers(to_here);
    Tensor moved = at::empty(shape, rows.options());
    group->all_to_all(moved, rows.detach().contiguous(), to_here, from_here, label);
    return moved;
  }
};
using RoutePointer = c10::intrusive_ptr<Route>;

RoutePointer plan_route(const Tensor& experts_TK, int64_t num_experts, Collectives& group) {
  auto route = c10::make_intrusive<Route>();
  const int64_t size = group.size(), num_held = num_experts / size;
  const Tensor flat = experts_TK.flatten();
  route->group = &group;
  route->num_choices = experts_TK.size(1);
  route->order = std::get<1>(at::sort(flat, /*stable=*/std::optional<bool>(true), 0, /*descending=*/false));
  route->tokens = route->order.div(route->num_choices, "floor");
  const Tensor sent = at::bincount(flat, {}, num_experts).to(at::kCPU).contiguous();
  Tensor received = at::empty_like(sent);  // by rank, and by this rank's experts
  const std::vector<int64_t> parts(static_cast<size_t>(size), num_held);
  group.all_to_all(received, sent, parts, parts, "rows of experts");
  const auto by_rank = [&](const Tensor& counts) {
    const Tensor sums = counts.view({size, num_held}).sum(1);
    return std::vector<int64_t>(sums.const_data_ptr<int64_t>(), sums.const_data_ptr<int64_t>() + size);
  };
  route->sent = by_rank(sent);
  route->received = by_rank(received);
  route->experts_N1 =
      at::arange(num_held, at::kLong).repeat({size}).repeat_interleave(received).unsqueeze(1).to(flat.device());
  return route;
}

/// Rows and weights of the pairs, to the ranks of their experts.
struct DispatchFunction : torch::autograd::Function<DispatchFunction> {
  static variable_list forward(AutogradContext* context, const Tensor& x, const Tensor& weights_TK,
                               const RoutePointer& route) {
    context->saved_data["route"] = at::IValue::make_capsule(route);
    const Tensor rows = route->to_experts(x.index_select(0, route->tokens), "tokens to experts");
    const Tensor weights =
        route->to_experts(weights_TK.flatten().index_select(0, route->order), "weights to experts").unsqueeze(1);
    return {rows, weights};
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto route = c10::static_intrusive_pointer_cast<Route>(context->saved_data["route"].toCapsule());
    const Tensor d_rows = route->to_home(gradients[0], "token gradients from experts");
    const Tensor d_weights = route->to_home(gradients[1].flatten(), "weight gradients from experts");
    const Tensor d_weights_TK =
        at::empty_like(d_weights).index_copy_(0, route->order, d_weights).view({-1, route->num_choices});
    return {route->sum_by_token(d_rows), d_weights_TK, Tensor()};
  }
};

/// What the experts gave, home, and added up by token.
struct CombineFunction : torch::autograd::Function<CombineFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& y, const RoutePointer& route) {
    context->saved_data["route"] = at::IValue::make_capsule(route);
    return route->sum_by_token(route->to_home(y, "results from experts"));
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto route = c10::static_intrusive_pointer_cast<Route>(context->saved_data["route"].toCapsule());
    return {route->to_experts(gradients[0].index_select(0, route->tokens), "result gradients to experts"), Tensor()};
  }
};

}  // namespace

Tensor experts_of_ranks(const Tensor& x_TD, const blocks::Routing& routing, int64_t num_experts, Collectives& experts,
                        const Exchange::HeldExperts& held) {
  const auto route = plan_route(routing.experts_TK, num_experts, experts);
  const auto arrived = DispatchFunction::apply(x_TD, routing.weights_TK, route);
  return CombineFunction::apply(held(arrived[0], {route->experts_N1, arrived[1]}), route);
}

}  // namespace troupe
