// Inverse frequencies of rotary position embedding under each kind of scaling; reading them is config_rope.cpp's.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "base/error.h"
#include "models/config.h"

namespace troupe {
namespace {

/// Long waves are stretched by the factor, short ones kept, those between interpolated; none are between where the
/// bounds are one, as Llama 4 has them.
double llama3_frequency(const RopeConfig& rope, double frequency) {
  const double wave_length = 2 * std::numbers::pi / frequency;
  const double length = static_cast<double>(rope.original_max_position_embeddings);
  const double above = length / wave_length - rope.low_freq_factor;
  const double width = rope.high_freq_factor - rope.low_freq_factor;
  const double kept = width == 0 ? (above >= 0 ? 1.0 : 0.0) : std::clamp(above / width, 0.0, 1.0);
  return (1 - kept) * frequency / rope.factor + kept * frequency;
}

/// The pair of dimensions that turns `rotations` times over the original length, as a real number.
double yarn_dimension(const RopeConfig& rope, double rotations, double head_dim) {
  const double length = static_cast<double>(rope.original_max_position_embeddings);
  return head_dim * std::log(length / (rotations * 2 * std::numbers::pi)) / (2 * std::log(rope.theta));
}

/// Ends of the ramp between kept and stretched frequencies.
std::pair<double, double> yarn_ramp(const RopeConfig& rope, double head_dim) {
  double low = yarn_dimension(rope, rope.beta_fast, head_dim), high = yarn_dimension(rope, rope.beta_slow, head_dim);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, head_dim - 1);
  return {low, low == high ? high + 0.001 : high};
}

}  // namespace

int64_t RopeConfig::constant_length() const {
  const bool depends = kind == "dynamic" || kind == "longrope";
  return depends ? original_max_position_embeddings : std::numeric_limits<int64_t>::max();
}

std::vector<double> rope_inverse_frequencies(const RopeConfig& rope, int64_t head_dim, int64_t length) {
  require(head_dim > 0 && head_dim % 2 == 0, "rotary embedding needs an even head size, not ", head_dim);
  const auto size = static_cast<double>(head_dim);
  const bool is_long = length > rope.constant_length();
  double theta = rope.theta;
  if (rope.kind == "dynamic" && is_long) {
    const double stretch = rope.factor * static_cast<double>(length) / static_cast<double>(rope.constant_length());
    theta *= std::pow(stretch - (rope.factor - 1), size / (size - 2));
  }
  const auto [ramp_low, ramp_high] = rope.kind == "yarn" ? yarn_ramp(rope, size) : std::pair(0.0, 1.0);
  std::vector<double> result(static_cast<size_t>(head_dim / 2));
  for (size_t i = 0; i < result.size(); ++i) {
    const double frequency = std::pow(theta, -2.0 * static_cast<double>(i) / size);
    if (rope.kind == "default" || rope.kind == "dynamic") {
      result[i] = frequency;
    } else if (rope.kind == "linear") {
      result[i] = frequency / rope.factor;
    } else if (rope.kind == "llama3") {
      result[i] = llama3_frequency(rope, frequency);
    } else if (rope.kind == "yarn") {
      const double stretched = std::clamp((static_cast<double>(i) - ramp_low) / (ramp_high - ramp_low), 0.0, 1.0);
      result[i] = frequency / rope.factor * stretched + frequency * (1 - stretched);
    } else if (rope.kind == "longrope") {
      result[i] = frequency / (is_long ? rope.long_factor : rope.short_factor).at(i);
    } else {
      fail("rope kind \"", rope.kind, "\" is not known");
    }
  }
  return result;
}

}  // namespace troupe
