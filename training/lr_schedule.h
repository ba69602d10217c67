// The learning rate as a function of the number of finished optimizer steps, and of nothing else: a resume cannot shift
// it (B076, B077).
//
//   rate  lr  |      ________________
//             |     /                \            warm-up, stable, decay ("WSD", Hu et al. 2024)
//             |    /                  \___ lr * min_lr_factor
//             +---+------------------+-----> steps
#pragma once

#include <cstdint>
#include <string>

namespace troupe {

struct ScheduleOptions {
  int64_t warmup_steps = 0, total_steps = 100;
  double decay_ratio = 0;  // share of total_steps at the end during which the rate decays; 0: constant after warm-up
  std::string decay_type = "linear";  // "linear" "sqrt" (1 - sqrt of progress) "cosine"
  double min_lr_factor = 0;           // the decay ends at lr * min_lr_factor
};

/// Rate of the step after `finished_steps`. Warm-up gives lr / warmup_steps in the first step and lr in step
/// warmup_steps; the decay reaches its end after total_steps and stays there.
double scheduled_learning_rate(const ScheduleOptions& options, double lr, int64_t finished_steps);

/// UsageError naming the key that is out of range.
void check_schedule(const ScheduleOptions& options);

}  // namespace troupe
