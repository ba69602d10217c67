// Routing by plain tensor operations: it is small beside the experts.
#include "models/blocks/router.h"

namespace troupe::blocks {
namespace {

/// Scores of experts outside of the best groups become -inf; a group is as good as its two best experts.
Tensor keep_best_groups(const Tensor& choice_TE, const MoeConfig& config) {
  if (config.num_groups == 1) return choice_TE;
  const int64_t num_tokens = choice_TE.size(0), group_size = config.num_experts / config.num_groups;
  const Tensor grouped = choice_TE.view({num_tokens, config.num_groups, group_size});
  const Tensor group_scores = std::get<0>(grouped.topk(std::min<int64_t>(2, group_size), 2)).sum(2);
  const Tensor kept = std::get<1>(group_scores.topk(config.num_kept_groups, 1));
  const Tensor is_kept =
      at::zeros(group_scores.sizes(), group_scores.options().dtype(at::kBool)).scatter_(1, kept, true);
  return grouped.masked_fill(is_kept.logical_not().unsqueeze(2), -std::numeric_limits<double>::infinity())
      .view(choice_TE.sizes());
}

Tensor best(const Tensor& choice_TE, const MoeConfig& config) {
  return std::get<1>(choice_TE.detach().topk(config.num_experts_per_token, 1));
}

}  // namespace

Routing route(const Tensor& x_TD, const RouterWeights& weights, const MoeConfig& config) {
  const auto type = x_TD.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  Tensor logits = at::matmul(x_TD.to(type), weights.weight_ED.to(type).t());
  if (weights.bias_E.defined()) logits = logits + weights.bias_E.to(type);
  Routing routing;
  routing.logits_TE = logits;
  switch (config.score) {
    case RouterScore::kSoftmax: {
      const Tensor scores = at::softmax(logits, 1);
      routing.experts_TK = best(scores, config);
      routing.weights_TK = scores.gather(1, routing.experts_TK);
      if (config.normalise) routing.weights_TK = routing.weights_TK / routing.weights_TK.sum(1, true);
      break;
    }
    case RouterScore::kSoftmaxOfChosen:
      routing.experts_TK = best(logits, config);
      routing.weights_TK = at::softmax(logits.gather(1, routing.experts_TK), 1);
      break;
    case RouterScore::kSigmoid: {
      const Tensor scores = at::sigmoid(logits);
      Tensor choice = scores.detach();
      if (weights.choice_bias_E.defined()) choice = choice + weights.choice_bias_E.detach().to(type);
      routing.experts_TK = best(keep_best_groups(choice, config), config);
      routing.weights_TK = scores.gather(1, routing.experts_TK);
      if (config.normalise) routing.weights_TK = routing.weights_TK / (routing.weights_TK.sum(1, true) + 1e-20);
      break;
    }
    case RouterScore::kSigmoidInput:
      routing.experts_TK = best(logits, config);
      routing.weights_TK = at::sigmoid(logits.gather(1, routing.experts_TK));
      break;
  }
  if (config.scale != 1) routing.weights_TK = routing.weights_TK * config.scale;
  return routing;
}

}  // namespace troupe::blocks
