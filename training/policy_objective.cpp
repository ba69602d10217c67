#include "training/policy_objective.h"

#include <cmath>
#include <set>

#include "base/error.h"
#include "base/log.h"

namespace troupe {
namespace {

PolicyLossOptions loss_options(const AlgorithmOptions& o) {
  PolicyLossOptions loss;
  loss.kind = parse_policy_loss(o.policy_loss);
  loss.clip_low = o.clip_low;
  loss.clip_high = o.clip_high;
  loss.dual_clip = o.dual_clip;
  loss.ratio_max = o.ratio_max;
  loss.correction = parse_correction(o.correction);
  loss.correction_low = o.correction_low;
  loss.correction_high = o.correction_high;
  loss.correction_cap = o.correction_cap;
  return loss;
}

}  // namespace

PolicyBatch::PolicyBatch(std::span<const Trajectory> batch, const AlgorithmOptions& algorithm, double coefficient)
    : trajectories(batch),
      options(&algorithm),
      samples(prepare_samples(batch, algorithm, coefficient)),
      loss(loss_options(algorithm)),
      aggregation(parse_aggregation(algorithm.aggregation)),
      kl_estimator(parse_kl_estimator(algorithm.kl_estimator)),
      kl_coefficient(coefficient) {}

bool PolicyBatch::has_kl_loss() const { return options->kl_in == "loss" && needs_reference(*options); }

PolicyObjective::PolicyObjective(const PolicyBatch& batch, const PackedRow& row, const LossCounts& counts,
                                 at::Device device)
    : batch_(batch), row_(&row) {
  const auto& trajectories = batch.trajectories;
  const auto tensor = [&](const auto& get) {
    std::vector<float> values(row.targets.size());
    for (size_t n = 0; n < values.size(); ++n)
      values[n] =
          static_cast<float>(get(static_cast<size_t>(row.samples[n]), static_cast<size_t>(row.token_indices[n])));
    return at::tensor(values, at::kFloat).to(device);
  };
  advantages_N_ = tensor([&](size_t s, size_t i) { return batch.samples.advantages[s][i]; });
  weights_N_ = tensor([&](size_t s, size_t) {
    if (row.is_filler) return 0.0;
    return token_weight(batch.aggregation, counts, trajectories[s].num_sampled_tokens(),
                        batch.options->constant_length);
  });
  anchor_N_ = tensor([&](size_t s, size_t i) { return batch.anchor[s][i]; });
  behavior_N_ = tensor([&](size_t s, size_t i) { return trajectories[s].log_probs[i]; });
  if (needs_reference(*batch.options))
    reference_N_ = tensor([&](size_t s, size_t i) { return trajectories[s].reference_log_probs[i]; });
  // Sequences are numbered within the row; a sample's tokens stand side by side.
  std::vector<int64_t> sequences;
  for (size_t n = 0; n < row.samples.size(); ++n) {
    if (n == 0 || row.samples[n] != row.samples[n - 1]) ++num_sequences_;
    sequences.push_back(num_sequences_ - 1);
  }
  sequences_N_ = at::tensor(sequences, at::kLong).to(device);
  if (batch.loss.correction != Correction::kNone) correction_N_ = correction_weights(input(anchor_N_), batch.loss);
}

void PolicyObjective::keep(const PackedRow& own, const std::vector<int64_t>& tokens) {
  row_ = &own;
  const auto kept = at::tensor(tokens, at::kLong).to(weights_N_.device());
  for (auto* values :
       {&advantages_N_, &weights_N_, &anchor_N_, &behavior_N_, &reference_N_, &sequences_N_, &correction_N_})
    if (values->defined()) *values = values->index_select(0, kept);
}

Tensor PolicyObjective::operator()(const Tensor& log_prob, const Tensor& entropy, const Tensor& places) const {
  const auto pick = [&](const Tensor& x_N) { return x_N.index_select(0, places); };
  const PolicyLossInput chosen{log_prob,           pick(anchor_N_), pick(behavior_N_), pick(advantages_N_),
                               pick(sequences_N_), num_sequences_};
  auto loss = policy_loss(chosen, without_correction()).token_loss_N;
  if (correction_N_.defined()) loss = loss * pick(correction_N_);
  if (batch_.has_kl_loss())
    loss = loss + batch_.kl_coefficient * kl_estimate(batch_.kl_estimator, log_prob, pick(reference_N_));
  if (batch_.options->entropy_coefficient != 0) loss = loss - batch_.options->entropy_coefficient * entropy;
  return (loss * pick(weights_N_)).sum();
}

void PolicyObjective::observe(const LogProbs& values, bool is_first_update, MetricSums& sums) const {
  const at::NoGradGuard no_grad;
  const bool counts = !row_->is_filler;
  const auto total = [&](const Tensor& x) { return counts ? x.sum(at::kDouble).item<double>() : 0; };
  const auto log_prob = values.log_prob_T.detach();
  const auto loss = policy_loss(input(log_prob), without_correction());
  const double num_tokens = counts ? static_cast<double>(log_prob.numel()) : 0;
  sums.add("tokens", num_tokens);
  sums.add("ratio", total(loss.ratio_N));
  sums.add("clipped", total(loss.clipped_N));
  sums.add("entropy", total(values.entropy_T.detach()));
  sums.add("advantage_abs", total(advantages_N_.abs()));
  if (is_first_update) {
    const auto difference = (log_prob - behavior_N_).abs();
    sums.add("difference_tokens", num_tokens);
    sums.add("difference", total(difference));
    sums.raise("difference", counts && difference.numel() > 0 ? difference.max().item<double>() : 0);
  }
  if (reference_N_.defined()) sums.add("kl", total(kl_estimate(batch_.kl_estimator, log_prob, reference_N_)));
  if (correction_N_.defined()) {
    sums.add("correction", total(correction_N_));
    sums.add("correction_dropped", total(correction_N_.eq(0)));
  }
}

void PolicyObjective::name_bad_samples(const Tensor& log_prob_N) const {
  const auto host = log_prob_N.detach().cpu().to(at::kFloat);
  const auto* value = host.const_data_ptr<float>();
  std::set<uint64_t> bad;
  for (size_t n = 0; n < row_->samples.size(); ++n) {
    const auto s = static_cast<size_t>(row_->samples[n]), i = static_cast<size_t>(row_->token_indices[n]);
    const auto& t = batch_.trajectories[s];
    const double reference = t.reference_log_probs.empty() ? 0 : t.reference_log_probs[i];
    if (!std::isfinite(value[n] + batch_.anchor[s][i] + t.log_probs[i] + batch_.samples.advantages[s][i] + reference))
      bad.insert(t.sample_id);
  }
  std::string names;
  for (const auto id : bad) names += concat(names.empty() ? "" : ", ", id);
  log::warning("the policy loss is not finite", names.empty() ? "" : ": log-prob or advantage of sample ", names);
}

PolicyLossInput PolicyObjective::input(const Tensor& log_prob) const {
  return {log_prob, anchor_N_, behavior_N_, advantages_N_, sequences_N_, num_sequences_};
}

/// The correction's weights are known before the forward and multiplied in afterwards.
PolicyLossOptions PolicyObjective::without_correction() const {
  auto options = batch_.loss;
  options.correction = Correction::kNone;
  return options;
}

}  // namespace troupe
