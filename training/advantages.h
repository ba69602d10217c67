// Advantages: how much better a sample or a token was than expected. Plain float64 over vectors; no tensors, no model.
// Everything per token looks only at trainable tokens (mask 1): what stands under mask 0 is never read.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace troupe {

enum class GroupBaseline { kGroupMean, kLeaveOneOut };
enum class AdvantageStd { kNone, kSample, kPopulation };
AdvantageStd parse_advantage_std(const std::string& name);  // UsageError lists the known names

struct GroupAdvantages {
  std::vector<double> advantage;  // [S], 0 where the sample takes no part
  std::vector<uint8_t> live;  // [S], 1 where the sample takes part: it has a reward, and so has another of its group
  std::vector<uint8_t> zero_variance;  // [S], 1 where the rewards of the sample's group do not differ
  int64_t num_zero_variance_groups = 0;
  int64_t num_failed_rewards = 0;
};

/// Advantage over the sample's own group (Shao et al. 2024, "DeepSeekMath"; leave-one-out: Ahmadian et al. 2024, "Back
/// to basics"). Samples of a group may stand anywhere. A missing or non-finite reward is left out of the statistics and
/// of the loss. Scaling divides by (std + 1e-6); a std of at most 1e-6 * max(1, largest |r|) is zero and never divides.
/// With leave-one-out, mean and std are those of the other samples.
GroupAdvantages group_advantages(std::span<const std::optional<double>> rewards, std::span<const uint64_t> groups,
                                 GroupBaseline baseline, AdvantageStd std);

/// Token rewards of one sample: `reward` at its last trainable token, minus coefficient * kl[t] at every trainable
/// token
/// (`kl` empty: none). [L], 0 under mask 0.
std::vector<double> token_rewards(std::span<const uint8_t> mask, double reward, std::span<const double> kl,
                                  double kl_coefficient);

/// Discounted reward to go, one discount per trainable token. [L], 0 under mask 0.
std::vector<double> discounted_returns(std::span<const uint8_t> mask, std::span<const double> rewards, double gamma);

struct TokenAdvantages {
  std::vector<double> advantage;  // [L], 0 under mask 0
  std::vector<double> returns;    // advantage + value
};
/// Generalised advantage estimation (Schulman et al. 2016) that steps from trainable token to trainable token; the
/// value after the last one is 0.
TokenAdvantages generalized_advantages(std::span<const uint8_t> mask, std::span<const double> rewards,
                                       std::span<const double> values, double gamma, double lambda);

/// Count, mean and centred sum of squares of a stream of numbers; slices merge to what the whole gives (Chan et al.
/// 1979), so that ranks that hold different, even empty, slices agree.
struct Moments {
  double count = 0, mean = 0, centred_squares = 0;
  void add(double value);
  void merge(const Moments& other);
  double population_variance() const { return count > 0 ? centred_squares / count : 0; }
};

/// Moments of the values under mask 1.
Moments masked_moments(std::span<const uint8_t> mask, std::span<const double> values);
/// values <- (values - mean) / sqrt(population variance + 1e-8) under mask 1; the rest stays.
void whiten(std::span<const uint8_t> mask, std::span<double> values, const Moments& moments);

/// Soft punishment of over-long answers (Yu et al. 2025, "DAPO", equation 13): 0 up to max_length - buffer, then
/// falling linearly to -1 at max_length; -1 beyond.
double overlong_penalty(int64_t length, int64_t max_length, int64_t buffer);

}  // namespace troupe
