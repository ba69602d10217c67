// Chunked log-probs; see the header. Both forms share Head, which knows one chunk's logits and their gradient.
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

struct ChunkValues {
  Tensor log_prob, entropy, log_sum_exp;
};

/// The head over one set of rows. Holds the wide weight where the narrow one cannot give logits in fp32.
class Head {
 public:
  Head(const Tensor& weight_VD, const LogProbOptions& options, int64_t vocab_size)
      : weight_(weight_VD.detach().narrow(0, 0, vocab_size)),
        wide_weight_(weight_.to(wide_type(weight_VD))),
        inverse_temperature_(1 / options.temperature) {}

  /// Logits / temperature of the rows, wide.
  Tensor scores(const Tensor& hidden_ND) const {
    return at::mm(hidden_ND.to(wide_weight_.scalar_type()), wide_weight_.t()).mul_(inverse_temperature_);
  }

  static ChunkValues values(const Tensor& scores, const Tensor& targets) {
    const Tensor log_sum_exp = scores.logsumexp(1);
    const Tensor expected = (scores - log_sum_exp.unsqueeze(1)).exp_().mul_(scores).sum(1);
    return {scores.gather(1, targets.unsqueeze(1)).squeeze(1) - log_sum_exp, log_sum_exp - expected, log_sum_exp};
  }

  /// Turns scores into the gradient of the logits, in the weight's dtype.
  Tensor d_logits(const Tensor& scores, const ChunkValues& values, const Tensor& targets, const Tensor& d_log_prob,
                  const Tensor& d_entropy) const {
    const Tensor log_p = scores - values.log_sum_exp.unsqueeze(1), p = log_p.exp();
    Tensor gradient = p * (-d_log_prob).unsqueeze(1);
    if (d_entropy.defined()) gradient -= p * (log_p + values.entropy.unsqueeze(1)) * d_entropy.unsqueeze(1);
    gradient.scatter_add_(1, targets.unsqueeze(1), d_log_prob.unsqueeze(1));
    return gradient.mul_(inverse_temperature_).to(weight_.scalar_type());
  }

  Tensor d_hidden(const Tensor& d_logits) const { return at::mm(d_logits, weight_); }
  const Tensor& weight() const { return weight_; }

 private:
  Tensor weight_, wide_weight_;
  double inverse_temperature_;
};

/// Sum over chunks of d_logits^T hidden, wide.
class WeightGradient {
 public:
  explicit WeightGradient(const Tensor& weight_VD) : shape_(weight_VD.sizes().vec()), type_(weight_VD.scalar_type()) {
    sum_ = at::zeros(shape_, weight_VD.options().dtype(wide_type(weight_VD)));
  }
  void add(const Tensor& d_logits, const Tensor& hidden_ND) {
    sum_.narrow(0, 0, d_logits.size(1)).add_(at::mm(d_logits.t(), hidden_ND));
  }
  Tensor take() const { return sum_.to(type_); }

 private:
  std::vector<int64_t> shape_;
  at::ScalarType type_;
  Tensor sum_;
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

struct LogProbFunction : torch::autograd::Function<LogProbFunction> {
  static variable_list forward(AutogradContext* context, const Tensor& hidden, const Tensor& weight,
                               const Tensor& targets, const LogProbOptions& options, int64_t vocab_size) {
    const auto [rows, selected] = select_rows(targets, hidden.size(0), vocab_size);
    const Head head(weight, options, vocab_size);
    const Tensor chosen = hidden.index_select(0, rows);
    const auto wide = hidden.options().dtype(wide_type(weight));
    Tensor log_prob = at::empty({rows.size(0)}, wide), entropy = at::empty_like(log_prob),
           sums = at::empty_like(log_prob);
    for_chunks(rows.size(0), options.num_chunk_rows, [&](int64_t begin, int64_t count) {
      const Tensor scores = head.scores(chosen.narrow(0, begin, count));
      const auto values = Head::values(scores, selected.narrow(0, begin, count));
      log_prob.narrow(0, begin, count).copy_(values.log_prob);
      entropy.narrow(0, begin, count).copy_(values.entropy);
      sums.narrow(0, begin, count).copy_(values.log_sum_exp);
    });
    context->save_for_backward({chosen, weight, rows, selected, entropy, sums});
    context->saved_data["temperature"] = options.temperature;
    context->saved_data["num_chunk_rows"] = options.num_chunk_rows;
    context->saved_data["entropy_gradient"] = options.entropy_gradient;
    context->saved_data["vocab_size"] = vocab_size;
    context->saved_data["num_tokens"] = hidden.size(0);
    Tensor log_prob_T = scatter_rows(log_prob, rows, hidden.size(0));
    Tensor entropy_T = scatter_rows(entropy, rows, hidden.size(0));
    if (!options.entropy_gradient) context->mark_non_differentiable({entropy_T});
    return {log_prob_T, entropy_T};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor &chosen = saved[0], &weight = saved[1], &rows = saved[2], &selected = saved[3];
    LogProbOptions options;
    options.temperature = context->saved_data["temperature"].toDouble();
    const int64_t num_chunk_rows = context->saved_data["num_chunk_rows"].toInt();
    const Head head(weight, options, context->saved_data["vocab_size"].toInt());
    const Tensor d_log_prob = gradients[0].index_select(0, rows);
    Tensor d_entropy;
    if (context->saved_data["entropy_gradient"].toBool()) d_entropy = gradients[1].index_select(0, rows);
    const Tensor d_chosen = at::empty_like(chosen);
    WeightGradient d_weight(weight);
    for_chunks(rows.size(0), num_chunk_rows, [&](int64_t begin, int64_t count) {
      const auto part = [&](const Tensor& x) { return x.defined() ? x.narrow(0, begin, count) : x; };
      const Tensor scores = head.scores(part(chosen));
      const ChunkValues values = {Tensor(), part(saved[4]), part(saved[5])};
      const Tensor d_logits = head.d_logits(scores, values, part(selected), part(d_log_prob), part(d_entropy));
      part(d_chosen).copy_(head.d_hidden(d_logits));
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

int64_t check_options(const Tensor& hidden_TD, const Tensor& weight_VD, const LogProbOptions& options) {
  require(options.temperature > 0, "log-probs need a temperature above 0, not ", options.temperature);
  require(options.num_chunk_rows > 0, "log-probs need a positive chunk");
  require(options.vocab_size >= 0 && options.vocab_size <= weight_VD.size(0), "log-probs: vocabulary of ",
          options.vocab_size, " tokens, but the head has ", weight_VD.size(0), " rows");
  require(hidden_TD.scalar_type() == weight_VD.scalar_type(), "log-probs: hidden states and head differ in dtype");
  return options.vocab_size == 0 ? weight_VD.size(0) : options.vocab_size;
}

}  // namespace

LogProbs log_probs(const Tensor& hidden_TD, const Tensor& weight_VD, const Tensor& targets_T,
                   const LogProbOptions& options) {
  const int64_t vocab_size = check_options(hidden_TD, weight_VD, options);
  const auto outputs = LogProbFunction::apply(hidden_TD, weight_VD, targets_T, options, vocab_size);
  return {outputs[0], outputs[1]};
}

LogProbLoss log_prob_loss(const Tensor& hidden_TD, const Tensor& weight_VD, const Tensor& targets_T,
                          const LogProbOptions& options, const ChunkLoss& chunk_loss) {
  const int64_t vocab_size = check_options(hidden_TD, weight_VD, options), num_tokens = hidden_TD.size(0);
  const auto [rows, selected] = select_rows(targets_T, num_tokens, vocab_size);
  Tensor loss, log_prob, entropy, d_chosen, d_weight_wide;
  const Head head(weight_VD, options, vocab_size);
  WeightGradient d_weight(weight_VD);
  {
    const at::NoGradGuard no_grad;
    const auto wide = hidden_TD.options().dtype(wide_type(weight_VD));
    const Tensor chosen = hidden_TD.detach().index_select(0, rows);
    loss = at::zeros({}, wide);
    log_prob = at::empty({rows.size(0)}, wide);
    entropy = at::empty_like(log_prob);
    d_chosen = at::empty_like(chosen);
    for_chunks(rows.size(0), options.num_chunk_rows, [&](int64_t begin, int64_t count) {
      const auto part = [&](const Tensor& x) { return x.narrow(0, begin, count); };
      const Tensor scores = head.scores(part(chosen));
      const auto values = Head::values(scores, part(selected));
      part(log_prob).copy_(values.log_prob);
      part(entropy).copy_(values.entropy);
      const Tensor log_prob_leaf = values.log_prob.detach().requires_grad_();
      const Tensor entropy_leaf = values.entropy.detach().requires_grad_(options.entropy_gradient);
      Tensor chunk;
      variable_list gradients(2);
      {
        const at::AutoGradMode with_grad(true);
        chunk = chunk_loss(log_prob_leaf, entropy_leaf, part(rows));
        if (chunk.requires_grad()) {
          variable_list leaves = {log_prob_leaf};
          if (options.entropy_gradient) leaves.push_back(entropy_leaf);
          gradients = torch::autograd::grad({chunk}, leaves, {}, std::nullopt, false, true);
          gradients.resize(2);
        }
      }
      loss += chunk.detach();
      const Tensor d_log_prob = gradients[0].defined() ? gradients[0] : at::zeros_like(values.log_prob);
      const Tensor d_logits = head.d_logits(scores, values, part(selected), d_log_prob, gradients[1]);
      part(d_chosen).copy_(head.d_hidden(d_logits));
      d_weight.add(d_logits, part(chosen));
    });
  }
  const Tensor d_hidden = scatter_rows(d_chosen, rows, num_tokens);
  LogProbLoss result;
  result.values = {scatter_rows(log_prob, rows, num_tokens), scatter_rows(entropy, rows, num_tokens)};
  result.loss = KnownGradientFunction::apply(hidden_TD, weight_VD, loss, d_hidden, d_weight.take());
  return result;
}

}  // namespace troupe
