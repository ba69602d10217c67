// The preference step: pairs of answers -> packed rows, both answers of a pair in one -> scores or log-probs -> loss of
// the pair.
//
//   row  [ prompt A | chosen A | rejected A | prompt B | ... ]     the beginning that both answers share is computed
//   once a reward model reads its score at each answer's last token (B021, B035), a policy the log-probs of its tokens
#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "training/learner_implementation.h"

namespace troupe {
namespace {

using Masks = std::vector<std::vector<uint8_t>>;  // [2P][L]

bool is_reward_model(const PreferenceOptions& options) { return options.loss == "bradley-terry"; }

/// Both answers of every pair, chosen first, as trajectories of one group that share all tokens up to where they part.
/// `reads_end`: one token more, a target only, so that the answer's last token predicts something and is in the row.
std::vector<Trajectory> to_trajectories(std::span<const PreferencePair> pairs, bool reads_end, Masks& wanted) {
  std::vector<Trajectory> result;
  for (size_t p = 0; p < pairs.size(); ++p) {
    const auto& chosen = pairs[p].chosen;
    const auto& rejected = pairs[p].rejected;
    const auto first_answer = [](const Document& d) {
      return std::find(d.loss_mask.begin(), d.loss_mask.end(), 1) - d.loss_mask.begin();
    };
    const auto parted =
        std::mismatch(chosen.tokens.begin(), chosen.tokens.end(), rejected.tokens.begin(), rejected.tokens.end());
    const auto shared = std::min({first_answer(chosen), first_answer(rejected), parted.first - chosen.tokens.begin()});
    require(shared > 0, "pair ", pairs[p].id, ": its answers share no token of a prompt");
    for (const auto* document : {&chosen, &rejected}) {
      Trajectory t;
      t.group = p;
      t.sample_id = make_sample_id(p, document == &rejected ? 1 : 0);
      t.tokens = document->tokens;
      t.prompt_length = static_cast<int32_t>(shared);
      auto mask = document->loss_mask;
      if (reads_end) {
        t.tokens.push_back(0);
        mask.assign(t.tokens.size(), 0);
        mask.back() = 1;
      }
      t.loss_mask = mask;
      wanted.push_back(std::move(mask));
      result.push_back(std::move(t));
    }
  }
  return result;
}

/// One number an answer, for the pairs of one row.
struct RowAnswers {
  Tensor chosen_P, rejected_P;
  std::vector<size_t> pairs;  // [P] indices in the batch
};

class PreferenceStep {
 public:
  PreferenceStep(Learner::Implementation& learner, std::span<const PreferencePair> pairs)
      : learner_(learner), options_(learner.options_.preference), pairs_(pairs) {
    require(!pairs.empty(), "a preference step without pairs");
    require(is_reward_model(options_) == (learner.config_.num_labels == 1), "preference.loss = \"", options_.loss,
            "\" ", is_reward_model(options_) ? "needs a model with one score" : "needs a language model");
    Masks wanted;
    const auto batch = to_trajectories(pairs, is_reward_model(options_), wanted);
    PackingOptions packing{learner.groups_.num_data_ranks(), learner.options_.num_tokens_per_microbatch, true};
    packing.keep_groups = true;
    rows_ = learner.own_rows(pack_trajectories(batch, wanted, packing));
  }

  const std::vector<LearnerRow>& rows() const { return rows_; }

  /// Loss of the row's pairs, as their share of the mean over all; adds its numbers to `sums`.
  Tensor loss_of(const LearnerRow& row, const Tensor& hidden_ND, MetricSums& sums) const {
    const auto answers = answers_of(row, hidden_ND);
    const auto count = static_cast<double>(pairs_.size());
    learner_.count_row(sums, row.whole);
    for (const char* name : {"loss", "pairs", "right", "margin", "chosen", "rejected"}) sums.add(name, 0);
    if (row.own.is_filler) return (answers.chosen_P + answers.rejected_P).sum() * 0;
    const auto numbers = [&](const auto& get) {
      std::vector<double> values;
      for (const size_t p : answers.pairs) values.push_back(get(pairs_[p]));
      return at::tensor(values, at::kDouble).to(answers.chosen_P.options());
    };
    Tensor loss_P, chosen_P, rejected_P;  // the last two as rewards
    if (is_reward_model(options_)) {
      chosen_P = answers.chosen_P;
      rejected_P = answers.rejected_P;
      const auto margin_P = numbers([](const PreferencePair& pair) { return pair.margin; });
      loss_P = bradley_terry_loss(chosen_P, rejected_P, margin_P, options_.center);
    } else {
      const PreferenceLogProbs log_probs{
          answers.chosen_P, answers.rejected_P,
          numbers([&](const PreferencePair& pair) { return reference_of(pair).first; }),
          numbers([&](const PreferencePair& pair) { return reference_of(pair).second; })};
      chosen_P = options_.beta * (log_probs.chosen_P - log_probs.reference_chosen_P);
      rejected_P = options_.beta * (log_probs.rejected_P - log_probs.reference_rejected_P);
      loss_P = options_.loss == "dpo" ? dpo_loss(log_probs, options_.beta, options_.label_smoothing)
                                      : ipo_loss(log_probs, options_.beta);
    }
    const auto loss = loss_P.sum() / count;
    if (!learner_.model_.speaks_for_row()) return loss;  // the same on every context rank: one counts it
    const at::NoGradGuard no_grad;
    const auto total = [](const Tensor& x) { return x.detach().sum(at::kDouble).item<double>(); };
    sums.add("loss", loss.item<double>());
    sums.add("pairs", static_cast<double>(answers.pairs.size()));
    sums.add("right", total(chosen_P.gt(rejected_P)));
    sums.add("margin", total(chosen_P - rejected_P));
    sums.add("chosen", total(chosen_P));
    sums.add("rejected", total(rejected_P));
    return loss;
  }

  void report(Metrics& metrics, const MetricSums& sums, const std::string& prefix) const {
    metrics[prefix + "accuracy"] = sums.ratio("right", "pairs");
    metrics[prefix + "margin"] = sums.ratio("margin", "pairs");
    metrics[prefix + "reward_chosen"] = sums.ratio("chosen", "pairs");
    metrics[prefix + "reward_rejected"] = sums.ratio("rejected", "pairs");
    metrics[prefix + "num_pairs"] = sums.sum("pairs");
  }

 private:
  /// The numbers of a row's tokens, added up by answer.
  RowAnswers answers_of(const LearnerRow& row, const Tensor& hidden_ND) const {
    const auto own_N =
        is_reward_model(options_)
            ? learner_.scores(hidden_ND)
            : log_probs(hidden_ND, learner_.head_weight(), row.targets_N, learner_.log_prob_options(1)).log_prob_T;
    const auto values_N = learner_.whole_row(row, own_N);
    RowAnswers answers;
    std::map<size_t, int64_t> places;  // pair -> its place in the row
    std::vector<int64_t> answer_of_N;
    for (const auto sample : row.whole.samples) {
      const auto pair = static_cast<size_t>(sample) / 2;
      const auto [place, is_new] = places.try_emplace(pair, static_cast<int64_t>(places.size()));
      if (is_new) answers.pairs.push_back(pair);
      answer_of_N.push_back(2 * place->second + sample % 2);
    }
    const auto sums_P2 = values_N.new_zeros({2 * static_cast<int64_t>(places.size())})
                             .index_add(0, at::tensor(answer_of_N, at::kLong).to(values_N.device()), values_N)
                             .view({-1, 2});
    answers.chosen_P = sums_P2.select(1, 0);
    answers.rejected_P = sums_P2.select(1, 1);
    return answers;
  }

  const std::pair<double, double>& reference_of(const PreferencePair& pair) const {
    const auto found = learner_.preference_reference_.find(pair.id);
    require(found != learner_.preference_reference_.end(), "pair ", pair.id, " has no log-probs of the reference");
    return found->second;
  }

  Learner::Implementation& learner_;
  const PreferenceOptions& options_;
  std::span<const PreferencePair> pairs_;
  std::vector<LearnerRow> rows_;
};

}  // namespace

Metrics Learner::train_preference(const std::vector<PreferencePair>& pairs) {
  auto& self = *implementation_;
  check_preference(self.options_.preference);
  const PreferenceStep step(self, pairs);
  MetricSums sums;
  const auto update = self.update(step.rows(), sums, [&](const LearnerRow& row, const Tensor& hidden_ND) {
    return step.loss_of(row, hidden_ND, sums);
  });
  Metrics metrics;
  self.report(metrics, sums, update);
  step.report(metrics, sums, "preference/");
  metrics["loss/mean"] = sums.sum("loss");
  metrics["skipped"] = update.is_skipped;
  metrics["train_batch/num_microbatches"] = static_cast<double>(step.rows().size());
  return metrics;
}

Metrics Learner::evaluate_preference(const std::vector<PreferencePair>& pairs) {
  auto& self = *implementation_;
  const PreferenceStep step(self, pairs);
  MetricSums sums;
  self.evaluate(step.rows(), sums,
                [&](const LearnerRow& row, const Tensor& hidden_ND) { step.loss_of(row, hidden_ND, sums); });
  Metrics metrics{{"validation/loss", sums.sum("loss")}};
  step.report(metrics, sums, "validation/");
  return metrics;
}

PreferenceReference Learner::preference_log_probs(const std::vector<PreferencePair>& pairs) {
  auto& self = *implementation_;
  constexpr size_t kNumPairsAtOnce = 256;
  PreferenceReference result;
  for (size_t begin = 0; begin < pairs.size(); begin += kNumPairsAtOnce) {
    const std::span some(pairs.data() + begin, std::min(kNumPairsAtOnce, pairs.size() - begin));
    Masks wanted;
    const auto batch = to_trajectories(some, false, wanted);
    const auto values = self.log_probs(batch, wanted, 1);
    const auto sum = [](const std::vector<float>& x) { return std::accumulate(x.begin(), x.end(), 0.0); };
    for (size_t p = 0; p < some.size(); ++p) result[some[p].id] = {sum(values[2 * p]), sum(values[2 * p + 1])};
  }
  return result;
}

void Learner::set_preference_reference(PreferenceReference reference) {
  implementation_->preference_reference_ = std::move(reference);
}

}  // namespace troupe
