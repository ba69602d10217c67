// The learning rate as a function of finished steps.
#include "training/lr_schedule.h"

#include "base/error.h"
#include "tests/doctest.h"

namespace troupe {

TEST_CASE("B076 the rate after a resume is that of the unbroken run") {
  const ScheduleOptions options{.warmup_steps = 10, .total_steps = 100};
  CHECK(scheduled_learning_rate(options, 1e-3, 4) == doctest::Approx(5e-4));
  CHECK(scheduled_learning_rate(options, 1e-3, 0) == doctest::Approx(1e-4));
  for (int64_t finished = 9; finished < 120; ++finished)
    CHECK(scheduled_learning_rate(options, 1e-3, finished) == 1e-3);
}

TEST_CASE("B077 the rate follows from the finished steps alone, whatever an epoch is") {
  // 3 epochs of 20 steps; a resume at step 40 knows nothing but the step.
  const ScheduleOptions options{.warmup_steps = 5, .total_steps = 60, .decay_ratio = 1, .decay_type = "linear"};
  CHECK(scheduled_learning_rate(options, 1, 40) == doctest::Approx(1 - 35.0 / 55));
}

TEST_CASE("warm-up, stable and decay") {
  ScheduleOptions options{.warmup_steps = 2, .total_steps = 10, .decay_ratio = 0.4, .min_lr_factor = 0.1};
  const auto rate = [&](int64_t finished) { return scheduled_learning_rate(options, 2, finished); };
  CHECK(rate(0) == doctest::Approx(1));
  CHECK(rate(1) == 2);
  CHECK(rate(5) == 2);
  CHECK(rate(6) == 2);  // the decay starts from the full rate
  CHECK(rate(8) == doctest::Approx(2 * (0.1 + 0.9 * 0.5)));
  CHECK(rate(10) == doctest::Approx(0.2));
  CHECK(rate(1000) == doctest::Approx(0.2));
  options.decay_type = "sqrt";
  CHECK(rate(7) == doctest::Approx(2 * (0.1 + 0.9 * 0.5)));
  options.decay_type = "cosine";
  CHECK(rate(8) == doctest::Approx(2 * (0.1 + 0.9 * 0.5)));
  options.decay_ratio = 1;  // never reaches into the warm-up
  CHECK(rate(1) == 2);
}

TEST_CASE("a schedule that cannot be is refused by key") {
  CHECK_THROWS_WITH_AS(check_schedule({.decay_type = "step"}),
                       R"(lr_scheduler.decay_type = "step" is unknown; known: "linear", "sqrt", "cosine")", UsageError);
  CHECK_THROWS_WITH_AS(check_schedule({.decay_ratio = 1.5}), "lr_scheduler.decay_ratio = 1.5 must lie in [0, 1]",
                       UsageError);
}

}  // namespace troupe
