#include "training/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "training/choices.h"

namespace troupe {
namespace {

enum class Decay { kLinear, kSqrt, kCosine };

Decay parse_decay(const std::string& name) {
  return choose<Decay>("lr_scheduler.decay_type", name,
                       {{"linear", Decay::kLinear}, {"sqrt", Decay::kSqrt}, {"cosine", Decay::kCosine}});
}

double remaining(Decay decay, double progress) {
  switch (decay) {
    case Decay::kSqrt:
      return 1 - std::sqrt(progress);
    case Decay::kCosine:
      return 0.5 * (1 + std::cos(std::numbers::pi * progress));
    case Decay::kLinear:
      break;
  }
  return 1 - progress;
}

}  // namespace

double scheduled_learning_rate(const ScheduleOptions& options, double lr, int64_t finished_steps) {
  if (finished_steps < options.warmup_steps)
    return lr * static_cast<double>(finished_steps + 1) / static_cast<double>(options.warmup_steps);
  const auto total = static_cast<double>(options.total_steps);
  const double decay_steps =
      std::min(std::round(total * options.decay_ratio), total - static_cast<double>(options.warmup_steps));
  const double into_decay = static_cast<double>(finished_steps) - (total - decay_steps);
  if (decay_steps <= 0 || into_decay <= 0) return lr;
  const double progress = std::min(1.0, into_decay / decay_steps);
  const double low = options.min_lr_factor;
  return lr * (low + (1 - low) * remaining(parse_decay(options.decay_type), progress));
}

void check_schedule(const ScheduleOptions& o) {
  const auto check = [](bool condition, const char* key, auto value, const char* wanted) {
    if (!condition) throw UsageError(concat("lr_scheduler.", key, " = ", value, " ", wanted));
  };
  parse_decay(o.decay_type);
  check(o.total_steps > 0, "total_steps", o.total_steps, "must be above 0");
  check(o.warmup_steps >= 0 && o.warmup_steps <= o.total_steps, "warmup_steps", o.warmup_steps,
        "must lie in [0, total_steps]");
  check(o.decay_ratio >= 0 && o.decay_ratio <= 1, "decay_ratio", o.decay_ratio, "must lie in [0, 1]");
  check(o.min_lr_factor >= 0 && o.min_lr_factor <= 1, "min_lr_factor", o.min_lr_factor, "must lie in [0, 1]");
}

}  // namespace troupe
