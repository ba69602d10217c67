#include "training/policy_samples.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "training/advantages.h"
#include "training/prompt_source.h"

namespace troupe {
namespace {

/// k1 of sampler and reference per token; empty where the KL is not part of the reward.
std::vector<double> reward_kl(const Trajectory& t, const AlgorithmOptions& options) {
  if (options.kl_in != "reward" || !needs_reference(options)) return {};
  std::vector<double> kl(t.tokens.size(), 0.0);
  for (size_t i = 0; i < kl.size(); ++i)
    if (t.loss_mask[i] != 0) kl[i] = double{t.log_probs[i]} - double{t.reference_log_probs[i]};
  return kl;
}

double sum(const std::vector<double>& values) {
  double total = 0;
  for (double value : values) total += value;
  return total;
}

void check_sample(const Trajectory& t, const AlgorithmOptions& options) {
  if (needs_reference(options))
    require(t.reference_log_probs.size() == t.tokens.size(), "sample ", t.sample_id,
            ": no reference log-probs, which algorithm.kl_coefficient asks for");
  if (options.advantage == "gae")
    require(t.values.size() == t.tokens.size(), "sample ", t.sample_id, ": no values, which advantage \"gae\" needs");
  if (options.advantage == "greedy_baseline")
    require(t.baseline_reward.has_value(), "sample ", t.sample_id,
            ": no baseline reward, which advantage \"greedy_baseline\" needs");
}

/// One number a sample, for the algorithms that compare whole samples.
std::vector<double> spread(const Trajectory& t, double advantage) {
  std::vector<double> tokens(t.tokens.size(), 0.0);
  for (size_t i = 0; i < tokens.size(); ++i)
    if (t.loss_mask[i] != 0) tokens[i] = advantage;
  return tokens;
}

}  // namespace

PolicySamples prepare_samples(std::span<const Trajectory> batch, const AlgorithmOptions& options,
                              double kl_coefficient) {
  PolicySamples result;
  std::vector<std::optional<double>> rewards;
  std::vector<uint64_t> groups;
  std::vector<std::vector<double>> kl;
  const bool compares_samples = options.advantage == "group_mean" || options.advantage == "leave_one_out";
  for (const auto& t : batch) {
    check_sample(t, options);
    kl.push_back(reward_kl(t, options));
    result.reference_kl_sum += sum(kl.back());
    auto reward = t.total_reward;
    if (reward && options.overlong == "penalty")
      *reward += options.overlong_penalty_factor *
                 overlong_penalty(t.num_sampled_tokens(), options.overlong_max_tokens, options.overlong_buffer);
    if (reward && compares_samples) *reward -= kl_coefficient * sum(kl.back());
    rewards.push_back(reward);
    groups.push_back(t.group);
  }
  const auto baseline = options.advantage == "leave_one_out" ? GroupBaseline::kLeaveOneOut : GroupBaseline::kGroupMean;
  const auto group = group_advantages(
      rewards, groups, baseline, compares_samples ? parse_advantage_std(options.advantage_std) : AdvantageStd::kNone);
  result.num_zero_variance_groups = group.num_zero_variance_groups;
  result.num_failed_rewards = group.num_failed_rewards;

  Moments moments;
  for (size_t i = 0; i < batch.size(); ++i) {
    const auto& t = batch[i];
    const bool is_known = rewards[i] && std::isfinite(*rewards[i]);
    bool takes_part = needs_groups(options) ? group.live[i] != 0 : is_known;
    if (options.zero_variance != "keep" && group.zero_variance[i] != 0) takes_part = false;
    if (options.overlong == "mask" && t.finish_reason == FinishReason::kLength) {
      result.num_overlong += takes_part;
      takes_part = false;
    }
    result.takes_part.push_back(takes_part);
    std::vector<double> advantages(t.tokens.size(), 0.0), returns(t.tokens.size(), 0.0);
    if (takes_part && compares_samples) {
      // A constant group has no advantage; what rounding leaves of it is not worth a forward.
      advantages = spread(t, group.zero_variance[i] != 0 ? 0 : group.advantage[i]);
    } else if (takes_part && options.advantage == "greedy_baseline") {
      advantages = spread(t, *rewards[i] - kl_coefficient * sum(kl[i]) - *t.baseline_reward);
    } else if (takes_part) {
      const double reward = options.advantage == "group_reward_to_go" ? group.advantage[i] : *rewards[i];
      const auto token_reward = token_rewards(t.loss_mask, reward, kl[i], kl_coefficient);
      if (options.advantage == "gae") {
        const std::vector<double> values(t.values.begin(), t.values.end());
        auto estimate = generalized_advantages(t.loss_mask, token_reward, values, options.gamma, options.lambda);
        advantages = std::move(estimate.advantage);
        returns = std::move(estimate.returns);
      } else {
        advantages = discounted_returns(t.loss_mask, token_reward, options.gamma);
      }
    }
    if (takes_part && options.whiten_advantages) moments.merge(masked_moments(t.loss_mask, advantages));
    result.advantages.push_back(std::move(advantages));
    if (needs_critic(options)) result.returns.push_back(std::move(returns));
  }
  const bool every_token_counts =
      (options.kl_in == "loss" && needs_reference(options)) || options.entropy_coefficient != 0;
  for (size_t i = 0; i < batch.size(); ++i) {
    if (result.takes_part[i] != 0 && options.whiten_advantages)
      whiten(batch[i].loss_mask, result.advantages[i], moments);
    for (double& advantage : result.advantages[i])
      if (advantage > 0) advantage *= options.positive_advantage_scale;
    const bool has_advantage =
        std::any_of(result.advantages[i].begin(), result.advantages[i].end(), [](double a) { return a != 0; });
    result.contributes.push_back(result.takes_part[i] != 0 && batch[i].num_sampled_tokens() > 0 &&
                                 (has_advantage || every_token_counts));
  }
  return result;
}

LossCounts count_loss_tokens(std::span<const Trajectory> batch, const PolicySamples& samples,
                             std::span<const size_t> subset) {
  LossCounts counts;
  for (const size_t i : subset) {
    if (samples.takes_part[i] == 0) continue;
    const auto num_tokens = batch[i].num_sampled_tokens();
    counts.num_tokens += num_tokens;
    counts.num_sequences += num_tokens > 0;
    counts.num_sequences_in_batch += 1;
  }
  return counts;
}

std::vector<std::vector<size_t>> cut_minibatches(std::span<const Trajectory> batch, int64_t num_minibatches,
                                                 uint64_t seed, uint64_t key) {
  std::map<uint64_t, std::vector<size_t>> groups;
  for (size_t i = 0; i < batch.size(); ++i) groups[batch[i].group].push_back(i);
  std::vector<const std::vector<size_t>*> members;
  for (const auto& [group, indices] : groups) members.push_back(&indices);
  const auto num_parts = std::min(static_cast<size_t>(num_minibatches), members.size());
  std::vector<std::vector<size_t>> parts(num_parts);
  if (num_parts == 0) return parts;
  const auto order = epoch_order(seed, key, static_cast<uint32_t>(members.size()));
  for (size_t position = 0; position < members.size(); ++position) {
    const auto& indices = *members[num_parts == 1 ? position : order[position]];
    auto& part = parts[position * num_parts / members.size()];
    part.insert(part.end(), indices.begin(), indices.end());
  }
  return parts;
}

}  // namespace troupe
