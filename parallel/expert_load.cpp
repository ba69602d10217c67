#include "parallel/expert_load.h"

namespace troupe {

bool is_recomputing() { return torch::autograd::get_current_graph_task_id() != -1; }

Tensor count_choices(const Tensor& experts_TK, const Tensor& is_counted_T, int64_t num_experts) {
  const Tensor chosen = is_counted_T.defined() ? experts_TK.index({is_counted_T}) : experts_TK;
  return at::bincount(chosen.flatten(), {}, num_experts);
}

ExpertLoad::ExpertLoad(const ModelConfig& config)
    : counts_LE_(at::zeros({config.num_hidden_layers, config.moe.num_experts}, at::kDouble)) {}

void ExpertLoad::start() {
  counts_LE_.zero_();
  is_counted_T_ = Tensor();
  is_counting_ = true;
}

void ExpertLoad::add(int64_t layer, const Tensor& experts_TK) {
  if (!is_counting_ || is_recomputing()) return;
  const at::NoGradGuard no_grad;
  counts_LE_[layer].add_(count_choices(experts_TK, is_counted_T_, counts_LE_.size(1)).to(counts_LE_.options()));
}

Tensor ExpertLoad::total(const RankGroups& groups) const {
  Tensor sum = counts_LE_.clone();
  // Tensor ranks route tokens of their own; stages have layers of their own.
  const auto join = [&](Collectives* group) {
    if (group != nullptr && group->size() > 1) group->all_reduce(sum, "expert load");
  };
  join(&groups.losses());
  join(groups.tensor());
  join(groups.pipeline());
  return sum;
}

double load_violation(const Tensor& load_LE) {
  const Tensor mean_L = load_LE.mean(1);
  const Tensor has_tokens = mean_L.gt(0);
  if (!has_tokens.any().item<bool>()) return 0;
  const Tensor violation_L = std::get<0>(load_LE.max(1)) / mean_L - 1;
  return violation_L.index({has_tokens}).mean().item<double>();
}

}  // namespace troupe
