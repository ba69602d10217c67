#include "training/advantages.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "training/choices.h"

namespace troupe {
namespace {

constexpr double kStdEpsilon = 1e-6;
constexpr double kWhiteningEpsilon = 1e-8;

struct Statistics {
  double mean = 0, std = 0;
  bool is_zero = true;  // too few or numerically equal values
};

/// Two passes, so that equal values leave no residue that looks like a spread (B007).
Statistics statistics(const std::vector<double>& values, AdvantageStd kind) {
  Statistics result;
  const auto n = static_cast<double>(values.size());
  if (values.empty()) return result;
  double largest = 0;
  for (double value : values) {
    result.mean += value / n;
    largest = std::max(largest, std::abs(value));
  }
  double squares = 0;
  for (double value : values) squares += (value - result.mean) * (value - result.mean);
  const double denominator = kind == AdvantageStd::kSample ? n - 1 : n;
  if (denominator > 0) result.std = std::sqrt(squares / denominator);
  result.is_zero = result.std <= kStdEpsilon * std::max(1.0, largest);
  return result;
}

double scaled(double centred, const Statistics& statistics, AdvantageStd kind) {
  return kind == AdvantageStd::kNone || statistics.is_zero ? centred : centred / (statistics.std + kStdEpsilon);
}

void check_lengths(std::span<const uint8_t> mask, size_t length, const char* what) {
  require(mask.size() == length, length, " ", what, " for ", mask.size(), " mask entries");
}

}  // namespace

AdvantageStd parse_advantage_std(const std::string& name) {
  return choose<AdvantageStd>(
      "algorithm.advantage_std", name,
      {{"sample", AdvantageStd::kSample}, {"population", AdvantageStd::kPopulation}, {"none", AdvantageStd::kNone}});
}

GroupAdvantages group_advantages(std::span<const std::optional<double>> rewards, std::span<const uint64_t> groups,
                                 GroupBaseline baseline, AdvantageStd std) {
  require(rewards.size() == groups.size(), rewards.size(), " rewards for ", groups.size(), " group ids");
  GroupAdvantages result;
  result.advantage.assign(rewards.size(), 0.0);
  result.live.assign(rewards.size(), 0);
  result.zero_variance.assign(rewards.size(), 0);
  std::map<uint64_t, std::vector<size_t>> members;
  for (size_t i = 0; i < rewards.size(); ++i) {
    const bool is_known = rewards[i] && std::isfinite(*rewards[i]);
    if (is_known) members[groups[i]].push_back(i);
    result.num_failed_rewards += !is_known;
  }
  for (const auto& [group, indices] : members) {
    std::vector<double> values;
    for (size_t i : indices) values.push_back(*rewards[i]);
    const auto whole = statistics(values, std);
    // The population spread decides here, so that the choice of scale does not change which groups count as constant.
    const bool is_constant = statistics(values, AdvantageStd::kPopulation).is_zero;
    result.num_zero_variance_groups += is_constant;
    for (size_t k = 0; k < indices.size(); ++k) {
      result.zero_variance[indices[k]] = is_constant;
      if (indices.size() < 2) continue;  // nothing to compare with
      result.live[indices[k]] = 1;
      if (baseline == GroupBaseline::kGroupMean) {
        result.advantage[indices[k]] = scaled(values[k] - whole.mean, whole, std);
      } else {
        auto others = values;
        others.erase(others.begin() + static_cast<std::ptrdiff_t>(k));
        const auto rest = statistics(others, std);
        result.advantage[indices[k]] = scaled(values[k] - rest.mean, rest, std);
      }
    }
  }
  return result;
}

std::vector<double> token_rewards(std::span<const uint8_t> mask, double reward, std::span<const double> kl,
                                  double kl_coefficient) {
  if (!kl.empty()) check_lengths(mask, kl.size(), "KL entries");
  std::vector<double> result(mask.size(), 0.0);
  bool is_last = true;
  for (size_t t = mask.size(); t-- > 0;) {
    if (mask[t] == 0) continue;
    if (!kl.empty()) result[t] = -kl_coefficient * kl[t];
    if (is_last) result[t] += reward;
    is_last = false;
  }
  return result;
}

std::vector<double> discounted_returns(std::span<const uint8_t> mask, std::span<const double> rewards, double gamma) {
  check_lengths(mask, rewards.size(), "rewards");
  std::vector<double> result(mask.size(), 0.0);
  double running = 0;
  for (size_t t = mask.size(); t-- > 0;) {
    if (mask[t] == 0) continue;
    running = rewards[t] + gamma * running;
    result[t] = running;
  }
  return result;
}

TokenAdvantages generalized_advantages(std::span<const uint8_t> mask, std::span<const double> rewards,
                                       std::span<const double> values, double gamma, double lambda) {
  check_lengths(mask, rewards.size(), "rewards");
  check_lengths(mask, values.size(), "values");
  TokenAdvantages result;
  result.advantage.assign(mask.size(), 0.0);
  result.returns.assign(mask.size(), 0.0);
  double next_value = 0, running = 0;
  for (size_t t = mask.size(); t-- > 0;) {
    if (mask[t] == 0) continue;
    const double delta = rewards[t] + gamma * next_value - values[t];
    running = delta + gamma * lambda * running;
    next_value = values[t];
    result.advantage[t] = running;
    result.returns[t] = running + values[t];
  }
  return result;
}

void Moments::add(double value) { merge({1, value, 0}); }

void Moments::merge(const Moments& other) {
  if (other.count == 0) return;
  const double total = count + other.count;
  const double difference = other.mean - mean;
  mean += difference * other.count / total;
  centred_squares += other.centred_squares + difference * difference * count * other.count / total;
  count = total;
}

Moments masked_moments(std::span<const uint8_t> mask, std::span<const double> values) {
  check_lengths(mask, values.size(), "values");
  Moments moments;
  for (size_t t = 0; t < mask.size(); ++t)
    if (mask[t] != 0) moments.add(values[t]);
  return moments;
}

void whiten(std::span<const uint8_t> mask, std::span<double> values, const Moments& moments) {
  check_lengths(mask, values.size(), "values");
  const double scale = 1 / std::sqrt(moments.population_variance() + kWhiteningEpsilon);
  for (size_t t = 0; t < mask.size(); ++t)
    if (mask[t] != 0) values[t] = (values[t] - moments.mean) * scale;
}

double overlong_penalty(int64_t length, int64_t max_length, int64_t buffer) {
  const int64_t excess = length - (max_length - buffer);
  if (excess <= 0) return 0;
  if (length >= max_length) return -1;
  return -static_cast<double>(excess) / static_cast<double>(buffer);
}

}  // namespace troupe
