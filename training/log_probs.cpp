// Chunked log-probs; see the header. Both forms share HeadChunk, which knows one chunk's logits and their gradient.
#include "training/log_probs.h"

#include "base/error.h"

namespace troupe {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::ScalarType wide_type(const Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

/// The rows that have a target, and their targets.
struct TargetRows {
  Tensor rows_N, targets_N;
};

TargetRows select_rows(const Tensor& targets_T, int64_t num_tokens, int64_t vocab_size) {
  require(targets_T.dim() == 1 && targets_T.size(0) == num_tokens, "log-probs: ", targets_T.numel(), " targets for ",
          num_tokens, " hidden states");
  const Tensor targets = targets_T.to(at::kLong);
  const Tensor rows = at::nonzero(targets.ge(0)).squeeze(1);
  const Tensor selected = targets.index_select(0, rows);
  require(rows.numel() == 0 || selected.max().item<int64_t>() < vocab_size, "log-probs: a target is outside of the ",
          vocab_size, " tokens of the vocabulary");
  return {rows, selected};
}

/// Sum over chunks of d_logits^T hidden: in the weight's own dtype while there is one chunk, wide from the second on.
class WeightGradient {
 public:
  WeightGradient(const Tensor& weight_VD, int64_t vocab_size) : like_(weight_VD), vocab_size_(vocab_size) {}
  void add(const Tensor& d_logits_VN, const Tensor& hidden_ND) {
    const Tensor part = at::mm(d_logits_VN, hidden_ND);
    if (sum_.defined()) {
      if (sum_.scalar_type() != wide_type(like_)) sum_ = sum_.to(wide_type(like_));
      sum_.add_(part);
    } else {
      sum_ = part;
    }
  }
  /// [V, D] in the weight's dtype; rows outside of the vocabulary in use are zero.
  Tensor take() const {
    if (!sum_.defined()) return at::zeros_like(like_);
    const Tensor narrow = sum_.to(like_.scalar_type());
    if (vocab_size_ == like_.size(0)) return narrow;
    const Tensor whole = at::zeros_like(like_);
    whole.narrow(0, 0, vocab_size_).copy_(narrow);
    return whole;
  }

 private:
  Tensor like_, sum_;
  int64_t vocab_size_;
};

Tensor scatter_rows(const Tensor& values_N, const Tensor& rows_N, int64_t num_tokens) {
  std::vector<int64_t> shape = values_N.sizes().vec();
  shape[0] = num_tokens;
  return at::zeros(shape, values_N.options()).index_copy_(0, rows_N, values_N);
}

template <class Body>
void for_chunks(int64_t num_rows, int64_t num_chunk_rows, const Body& body) {
  for (int64_t begin = 0; begin < num_rows; begin += num_chunk_rows)
    body(begin, std::min(num_chunk_rows, num_rows - begin));
}

/// Targets are below this.
int64_t largest_target(const Tensor& weight_VD, const LogProbOptions& options) {
  return options.vocab_size == 0 ? weight_VD.size(0) : options.vocab_size;
}

/// How many rows of the weight are in use.
int64_t check_options(const Tensor& hidden_TD, const Tensor& weight_VD, const LogProbOptions& options) {
  require(options.temperature > 0, "log-probs need a temperature above 0, not ", options.temperature);
  require(options.num_chunk_rows > 0, "log-probs need a positive chunk");
  require(hidden_TD.scalar_type() == weight_VD.scalar_type(), "log-probs: hidden states and head differ in dtype");
  const int64_t num_rows = weight_VD.size(0);
  if (options.split.ranks != nullptr) {
    require(options.vocab_size > 0, "log-probs over a split vocabulary need its whole size");
    return std::clamp<int64_t>(options.vocab_size - options.split.begin, 0, num_rows);
  }
  require(options.vocab_size >= 0 && options.vocab_size <= num_rows, "log-probs: vocabulary of ", options.vocab_size,
          " tokens, but the head has ", num_rows, " rows");
  return largest_target(weight_VD, options);
}

struct LogProbFunction : torch::autograd::Function<LogProbFunction> {
  /// `num_used`: rows of this weight that are in use.
  static variable_list forward(AutogradContext* context, const Tensor& hidden, const Tensor& weight,
                               const Tensor& targets, const LogProbOptions& options, int64_t num_used) {
    const auto [rows, selected] = select_rows(targets, hidden.size(0), largest_target(weight, options));
    const Tensor chosen = hidden.index_select(0, rows);
    const Tensor log_prob = at::empty({rows.size(0)}, hidden.options().dtype(wide_type(weight)));
    const Tensor entropy = at::empty_like(log_prob);
    const auto head = make_head_chunk(weight.narrow(0, 0, num_used), {options.temperature, options.logit_softcap},
                                      std::min(options.num_chunk_rows, rows.size(0)), options.split);
    for_chunks(rows.size(0), options.num_chunk_rows, [&](int64_t begin, int64_t count) {
      const auto part = [&](const Tensor& x) { return x.narrow(0, begin, count); };
      head->forward(part(chosen), part(selected), part(log_prob), part(entropy));
    });
    context->save_for_backward({chosen, weight, rows, selected});
    context->saved_data["temperature"] = options.temperature;
    context->saved_data["softcap"] = options.logit_softcap;
    context->saved_data["num_chunk_rows"] = options.num_chunk_rows;
    context->saved_data["entropy_gradient"] = options.entropy_gradient;
    context->saved_data["num_used"] = num_used;
    context->saved_data["split_ranks"] = reinterpret_cast<int64_t>(options.split.ranks);
    context->saved_data["split_begin"] = options.split.begin;
    context->saved_data["num_tokens"] = hidden.size(0);
    const Tensor log_prob_T = scatter_rows(log_prob, rows, hidden.size(0));
    const Tensor entropy_T = scatter_rows(entropy, rows, hidden.size(0));
    if (!options.entropy_gradient) context->mark_non_differentiable({entropy_T});
    return {log_prob_T, entropy_T};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor &chosen = saved[0], &weight = saved[1], &rows = saved[2], &selected = saved[3];
    const int64_t num_used = context->saved_data["num_used"].toInt();
    const VocabularySplit split{reinterpret_cast<Collectives*>(context->saved_data["split_ranks"].toInt()),
                                context->saved_data["split_begin"].toInt()};
    const int64_t num_chunk_rows = context->saved_data["num_chunk_rows"].toInt();
    const Tensor used = weight.detach().narrow(0, 0, num_used);
    const Tensor d_log_prob = gradients[0].index_select(0, rows);
    Tensor d_entropy;
    if (context->saved_data["entropy_gradient"].toBool()) d_entropy = gradients[1].index_select(0, rows);
    const Tensor d_chosen = at::empty_like(chosen);
    const auto head = make_head_chunk(
        used, {context->saved_data["temperature"].toDouble(), context->saved_data["softcap"].toDouble()},
        std::min(num_chunk_rows, rows.size(0)), split);
    WeightGradient d_weight(weight.detach(), num_used);
    for_chunks(rows.size(0), num_chunk_rows, [&](int64_t begin, int64_t count) {
      const auto part = [&](const Tensor& x) { return x.defined() ? x.narrow(0, begin, count) : x; };
      const Tensor log_prob = at::empty({count}, d_log_prob.options()), entropy = at::empty_like(log_prob);
      head->forward(part(chosen), part(selected), log_prob, entropy);
      const Tensor d_logits = head->backward(part(d_log_prob), part(d_entropy));
      part(d_chosen).copy_(at::mm(d_logits.t(), used));
      d_weight.add(d_logits, part(chosen));
    });
    return {scatter_rows(d_chosen, rows, context->saved_data["num_tokens"].toInt()), d_weight.take(), Tensor(),
            Tensor(), Tensor()};
  }
};

/// Hands on gradients that forward has computed already, scaled by the upstream gradient of the loss.
struct KnownGradientFunction : torch::autograd::Function<KnownGradientFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& hidden, const Tensor& weight, const Tensor& loss,
                        const Tensor& d_hidden, const Tensor& d_weight) {
    context->save_for_backward({d_hidden, d_weight});
    return loss.clone();
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto scaled = [&](const Tensor& x) {
      return gradients[0].item<double>() == 1 ? x : x * gradients[0].to(x.scalar_type());
    };
    return {scaled(saved[0]), scaled(saved[1]), Tensor(), Tensor(), Tensor()};
  }
};

/// Adds the chunk's loss to `loss` and gives its gradients of log-prob and entropy (undefined where not wanted).
std::pair<Tensor, Tensor> differentiate(const ChunkLoss& chunk_loss, const Tensor& log_prob, const Tensor& entropy,
                                        const Tensor& rows, bool entropy_gradient, const Tensor& loss) {
  const at::AutoGradMode with_grad(true);
  variable_list leaves = {log_prob.detach().clone().requires_grad_()};
  leaves.push_back(entropy.detach().clone().requires_grad_(entropy_gradient));
  const Tensor value = chunk_loss(leaves[0], leaves[1], rows);
  loss.add_(value.detach());
  if (!entropy_gradient) leaves.pop_back();
  variable_list gradients(leaves.size());
  if (value.requires_grad()) gradients = torch::autograd::grad({value}, leaves, {}, std::nullopt, false, true);
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (!gradients[i].defined()) gradients[i] = at::zeros_like(leaves[i]);
  }
  return {gradients[0], entropy_gradient ? gradients[1] : Tensor()};
}

}  // namespace

LogProbs log_probs(const Tensor& hidden_TD, const Tensor& weight_VD, const Tensor& targets_T,
                   const LogProbOptions& options) {
  const int64_t num_used = check_options(hidden_TD, weight_VD, options);
  const auto outputs = LogProbFunction::apply(hidden_TD, weight_VD, targets_T, options, num_used);
  return {outputs[0], outputs[1]};
}

LogProbLoss log_prob_loss(const Tensor& hidden_TD, const Tensor& weight_VD, const Tensor& targets_T,
                          const LogProbOptions& options, const ChunkLoss& chunk_loss) {
  const int64_t num_used = check_options(hidden_TD, weight_VD, options), num_tokens = hidden_TD.size(0);
  const auto [rows, selected] = select_rows(targets_T, num_tokens, largest_target(weight_VD, options));
  const at::ScalarType type = wide_type(weight_VD);
  const Tensor used = weight_VD.detach().narrow(0, 0, num_used), chosen = hidden_TD.detach().index_select(0, rows);
  const Tensor log_prob = at::empty({rows.size(0)}, hidden_TD.options().dtype(type)),
               entropy = at::empty_like(log_prob);
  const Tensor loss = at::zeros({}, log_prob.options()), d_chosen = at::empty_like(chosen);
  const auto head = make_head_chunk(used, {options.temperature, options.logit_softcap},
                                    std::min(options.num_chunk_rows, rows.size(0)), options.split);
  WeightGradient d_weight(weight_VD.detach(), num_used);
  for_chunks(rows.size(0), options.num_chunk_rows, [&](int64_t begin, int64_t count) {
    const auto part = [&](const Tensor& x) { return x.narrow(0, begin, count); };
    head->forward(part(chosen), part(selected), part(log_prob), part(entropy));
    const auto [d_log_prob, d_entropy] =
        differentiate(chunk_loss, part(log_prob), part(entropy), part(rows), options.entropy_gradient, loss);
    const Tensor d_logits = head->backward(d_log_prob, d_entropy);
    part(d_chosen).copy_(at::mm(d_logits.t(), used));
    d_weight.add(d_logits, part(chosen));
  });
  const Tensor d_hidden = scatter_rows(d_chosen, rows, num_tokens);
  LogProbLoss result;
  result.values = {scatter_rows(log_prob, rows, num_tokens), scatter_rows(entropy, rows, num_tokens)};
  result.loss = KnownGradientFunction::apply(hidden_TD, weight_VD, loss, d_hidden, d_weight.take());
  return result;
}

}  // namespace troupe
