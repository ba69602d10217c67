// The policy step: trajectories -> packed rows -> objective per token -> update, over epochs and mini-batches.
#include <algorithm>
#include <numeric>

#include "training/learner_implementation.h"
#include "training/policy_objective.h"

namespace troupe {
namespace {

using Masks = std::vector<std::vector<uint8_t>>;  // [S][L]

Masks sampled_masks(std::span<const Trajectory> batch) {
  Masks masks;
  for (const auto& t : batch) masks.push_back(t.loss_mask);
  return masks;
}

/// Keeps the masks of the chosen samples, zeroes the others.
Masks only(const Masks& masks, const std::vector<size_t>& chosen) {
  Masks result;
  for (const auto& mask : masks) result.emplace_back(mask.size(), 0);
  for (const size_t s : chosen) result[s] = masks[s];
  return result;
}

/// One call of train_policy.
class PolicyStep {
 public:
  PolicyStep(Learner::Implementation& learner, std::span<const Trajectory> batch)
      : learner_(learner),
        algorithm_(learner.options_.algorithm),
        policy_(batch, algorithm_, learner.kl_coefficient_.value()) {
    std::vector<size_t> contributing;
    for (size_t s = 0; s < batch.size(); ++s)
      if (policy_.samples.contributes[s] != 0) contributing.push_back(s);
    wanted_ = only(sampled_masks(batch), contributing);
    if (algorithm_.old_log_probs == "recomputed") {
      policy_.anchor = learner.log_probs(batch, wanted_, algorithm_.temperature);
    } else {
      for (const auto& t : batch) policy_.anchor.push_back(t.log_probs);
    }
  }

  Metrics run() {
    const auto& batch = policy_.trajectories;
    for (int64_t epoch = 0; epoch < algorithm_.num_epochs; ++epoch) {
      // Keys above every prompt epoch, so that no two uses of the random stream meet.
      const auto key =
          (uint64_t{1} << 63) | (static_cast<uint64_t>(learner_.step_) << 16) | static_cast<uint64_t>(epoch);
      for (const auto& part : cut_minibatches(batch, algorithm_.num_minibatches, learner_.options_.seed, key))
        update(part);
    }
    auto metrics = batch_metrics();
    if (num_updates_ > 0) add_update_metrics(metrics);
    return metrics;
  }

 private:
  void update(const std::vector<size_t>& part) {
    const auto& batch = policy_.trajectories;
    const auto rows = learner_.own_rows(
        pack_trajectories(batch, only(wanted_, part),
                          {learner_.groups_.num_data_ranks(), learner_.options_.num_tokens_per_microbatch, true}));
    if (rows.empty()) return;  // nothing in it to learn from
    const auto counts = count_loss_tokens(batch, policy_.samples, part);
    MetricSums sums;
    const auto update = learner_.update(rows, sums, [&](const LearnerRow& row, const Tensor& hidden_ND) {
      return loss_of(row, hidden_ND, counts, sums);
    });
    num_updates_ += 1;
    num_rows_ += static_cast<double>(rows.size());
    num_skipped_ += update.is_skipped;
    total_.lr = update.lr;
    total_.grad_norm += update.grad_norm;
    total_.load_violation = update.load_violation;
    total_.balance_loss = update.balance_loss;
    total_.forward_backward_s += update.forward_backward_s;
    total_.optimizer_s += update.optimizer_s;
    sums_.merge(sums);
  }

  Tensor loss_of(const LearnerRow& row, const Tensor& hidden_ND, const LossCounts& counts, MetricSums& sums) {
    auto options = learner_.log_prob_options(algorithm_.temperature);
    options.entropy_gradient = algorithm_.entropy_coefficient != 0;
    const auto weight_VD = learner_.head_weight();
    const auto device = learner_.options_.parallel.sharding.device;
    learner_.count_row(sums, row.whole);
    if (policy_.is_sum_over_tokens()) {
      PolicyObjective objective(policy_, row.whole, counts, device);
      if (row.kept.size() != row.whole.targets.size()) objective.keep(row.own, row.kept);
      const auto result = log_prob_loss(hidden_ND, weight_VD, row.targets_N, options, std::cref(objective));
      observe(objective, result.values, result.loss, sums);
      return result.loss;
    }
    // The objective joins a sequence's tokens, which may lie on several context ranks: each of them computes the whole
    // row's loss, its gradient reaches each rank's own tokens, and one of them counts it.
    auto values = troupe::log_probs(hidden_ND, weight_VD, row.targets_N, options);
    values = {learner_.whole_row(row, values.log_prob_T), learner_.whole_row(row, values.entropy_T)};
    const PolicyObjective objective(policy_, row.whole, counts, device);
    const auto loss =
        objective(values.log_prob_T, values.entropy_T, at::arange(values.log_prob_T.numel(), row.targets_N.options()));
    auto counted = row.whole;
    counted.is_filler = counted.is_filler || !learner_.model_.speaks_for_row();
    observe(PolicyObjective(policy_, counted, counts, device), values,
            learner_.model_.speaks_for_row() ? loss : at::zeros_like(loss), sums);
    return loss;
  }

  void observe(const PolicyObjective& objective, const LogProbs& values, const Tensor& loss, MetricSums& sums) const {
    const double loss_value = loss.item<double>();
    if (!std::isfinite(loss_value)) objective.name_bad_samples(values.log_prob_T);
    sums.add("loss", loss_value);
    objective.observe(values, num_updates_ == 0, sums);
  }

  /// What is known without any update.
  Metrics batch_metrics() const {
    const auto& samples = policy_.samples;
    std::vector<size_t> everything(policy_.trajectories.size());
    std::iota(everything.begin(), everything.end(), size_t{0});
    const auto counts = count_loss_tokens(policy_.trajectories, samples, everything);
    return {{"skipped", num_skipped_},
            {"lr", scheduled_learning_rate(learner_.options_.schedule, learner_.options_.optimizer.lr, learner_.step_)},
            {"loss/mean", 0},
            {"grad_norm", 0},
            {"train_batch/num_samples", static_cast<double>(everything.size())},
            {"train_batch/num_tokens", static_cast<double>(counts.num_tokens)},
            {"train_batch/num_zero_variance_groups", static_cast<double>(samples.num_zero_variance_groups)},
            {"train_batch/num_failed_rewards", static_cast<double>(samples.num_failed_rewards)},
            {"train_batch/num_overlong", static_cast<double>(samples.num_overlong)},
            {"train_batch/num_trained_tokens", 0},
            {"train_batch/num_microbatches", 0}};
  }

  void add_update_metrics(Metrics& metrics) {
    total_.grad_norm /= num_updates_;
    learner_.report(metrics, sums_, total_);
    metrics["loss/mean"] = sums_.sum("loss") / num_updates_;
    metrics["loss/ratio_mean"] = sums_.ratio("ratio", "tokens");
    metrics["loss/ratio_clipped_frac"] = sums_.ratio("clipped", "tokens");
    metrics["entropy/mean"] = sums_.ratio("entropy", "tokens");
    metrics["advantage/abs_mean"] = sums_.ratio("advantage_abs", "tokens");
    metrics["logprob_diff/mean"] = sums_.ratio("difference", "difference_tokens");
    metrics["logprob_diff/max"] = sums_.maximum("difference");
    metrics["train_batch/num_trained_tokens"] = sums_.sum("tokens");
    metrics["train_batch/num_microbatches"] = num_rows_;
    if (needs_reference(algorithm_)) {
      const double kl = sums_.ratio("kl", "tokens");
      metrics["kl/mean"] = kl;
      metrics["kl/coefficient"] = policy_.kl_coefficient;
      learner_.kl_coefficient_.update(kl, static_cast<double>(policy_.trajectories.size()));
    }
    if (policy_.loss.correction == Correction::kNone) return;
    metrics["correction/weight_mean"] = sums_.ratio("correction", "tokens");
    metrics["correction/dropped_frac"] = sums_.ratio("correction_dropped", "tokens");
  }

  Learner::Implementation& learner_;
  const AlgorithmOptions& algorithm_;
  PolicyBatch policy_;
  Masks wanted_;  // trained tokens of the samples that contribute
  MetricSums sums_;
  Learner::Implementation::Update total_;
  double num_updates_ = 0, num_rows_ = 0, num_skipped_ = 0;
};

}  // namespace

std::vector<std::vector<float>> Learner::log_probs(const std::vector<Trajectory>& batch, Wanted wanted) {
  auto masks = sampled_masks(batch);
  if (wanted == Wanted::kAllTokens)
    for (auto& mask : masks) {
      std::fill(mask.begin(), mask.end(), 1);
      if (!mask.empty()) mask[0] = 0;
    }
  auto& self = *implementation_;
  return self.log_probs(batch, masks, self.options_.algorithm.temperature);
}

Metrics Learner::train_policy(const std::vector<Trajectory>& batch) {
  check_algorithm(implementation_->options_.algorithm);
  const auto longest = implementation_->options_.max_context_length;
  for (const auto& t : batch)
    require(static_cast<int64_t>(t.tokens.size()) <= longest, "sample ", t.sample_id, " has ", t.tokens.size(),
            " tokens; training.max_context_length is ", longest);
  return PolicyStep(*implementation_, batch).run();
}

}  // namespace troupe
