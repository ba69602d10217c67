#include "parallel/router_balance.h"

#include "parallel/expert_load.h"

namespace troupe {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct RowHolder : torch::CustomClassHolder {
  explicit RowHolder(std::shared_ptr<const RouterBalance::Row> row) : row(std::move(row)) {}
  std::shared_ptr<const RouterBalance::Row> row;
};

int64_t num_experts_of(const RouterBalance::Row& row) { return (row.sums.numel() - 1) / 2; }
Tensor chosen(const RouterBalance::Row& row) { return row.sums.narrow(0, 0, num_experts_of(row)); }
Tensor probabilities(const RouterBalance::Row& row) {
  return row.sums.narrow(0, num_experts_of(row), num_experts_of(row));
}

/// Identity on the weights; its backward gives the logits the gradient of the row's loss.
struct BalanceFunction : torch::autograd::Function<BalanceFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& weights_TK, const Tensor& logits_TE,
                        const std::shared_ptr<const RouterBalance::Row>& row) {
    context->save_for_backward({logits_TE});
    context->saved_data["row"] = at::IValue::make_capsule(c10::make_intrusive<RowHolder>(row));
    return weights_TK.view_as(weights_TK);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto& row = *c10::static_intrusive_pointer_cast<RowHolder>(context->saved_data["row"].toCapsule())->row;
    const Tensor p_TE = at::softmax(context->get_saved_variables()[0], 1);
    const double num_tokens = row.sums[-1].item<double>();
    if (num_tokens == 0) return {gradients[0], at::zeros_like(p_TE), Tensor()};
    const Tensor f_E = (chosen(row) / num_tokens).to(p_TE.options());
    Tensor d_logits = p_TE * (f_E - (p_TE * f_E).sum(1, true));
    d_logits *= row.weight * static_cast<double>(f_E.numel()) / num_tokens;
    if (row.is_counted_T.defined())
      d_logits.masked_fill_(row.is_counted_T.to(d_logits.device()).logical_not().unsqueeze(1), 0);
    return {gradients[0], d_logits, Tensor()};
  }
};

}  // namespace

void RouterBalance::start() {
  row_ = nullptr;
  loss_ = 0;
}

void RouterBalance::begin_row(double weight, Tensor is_counted_T) {
  row_ = std::make_shared<Row>();
  row_->weight = weight;
  row_->is_counted_T = std::move(is_counted_T);
  row_->sums = at::zeros({2 * config_.moe.num_experts + 1}, at::kDouble);
}

blocks::Routing RouterBalance::attach(const blocks::Routing& routing) const {
  if (row_ == nullptr) return routing;
  if (!is_recomputing()) {
    const at::NoGradGuard no_grad;
    const auto& is_counted_T = row_->is_counted_T;
    const Tensor logits = is_counted_T.defined() ? routing.logits_TE.index({is_counted_T}) : routing.logits_TE;
    chosen(*row_).add_(count_choices(routing.experts_TK, is_counted_T, num_experts_of(*row_)).to(row_->sums.options()));
    probabilities(*row_).add_(at::softmax(logits, 1).sum(0, false, at::kDouble).to(row_->sums.options()));
    row_->sums[-1].add_(static_cast<double>(logits.size(0)));
  }
  if (!at::GradMode::is_enabled()) return routing;
  auto balanced = routing;
  balanced.weights_TK = BalanceFunction::apply(routing.weights_TK, routing.logits_TE, row_);
  return balanced;
}

void RouterBalance::end_row() {
  if (row_ == nullptr) return;
  const at::NoGradGuard no_grad;
  for (auto* group : {groups_.context(), groups_.tensor()})
    if (group != nullptr) group->all_reduce(row_->sums, "router balance");
  const double num_tokens = row_->sums[-1].item<double>();
  if (num_tokens == 0 || groups_.place().context != 0) return;
  const double overlap = (chosen(*row_) * probabilities(*row_)).sum().item<double>() / (num_tokens * num_tokens);
  loss_ += row_->weight * static_cast<double>(num_experts_of(*row_)) * overlap;
}

}  // namespace troupe
