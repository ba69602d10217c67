// Many workers: what the director costs with 64 of them, and that 1,024 work. The workers answer at once; the clock
// that they live by is virtual, that of the director's own work is not.
#include <algorithm>

#include "tests/actors/virtual_run.h"

namespace troupe {
namespace {

using namespace actor_tests;

/// Seconds of the director's own work, the median of the steps.
double director_seconds(const VirtualRun& run) {
  std::vector<double> seconds;
  for (const auto& step : run.metrics()) seconds.push_back(step.at("timing/director(s)"));
  REQUIRE(!seconds.empty());
  std::nth_element(seconds.begin(), seconds.begin() + static_cast<long>(seconds.size() / 2), seconds.end());
  return seconds[seconds.size() / 2];
}

}  // namespace

TEST_CASE("with 64 workers that answer at once the director costs less than 1 % of a step that trains their samples") {
  VirtualRun run;
  run.num_workers = 64;
  run.admission = {64, 1, 1};
  run.num_samples = 8;
  run.credit = 16;
  run.num_steps = 30;
  run.rollout_time = [](uint64_t) { return Milliseconds(0); };
  REQUIRE(run.play());
  CHECK(run.code == 0);
  run.check_each_trained_once(30);
  const auto seconds = director_seconds(run);
  MESSAGE("director: ", 1e3 * seconds, " ms a step of 64 workers and 512 samples");
  // 512 samples of the smallest job there is, a model of a million parameters and 16 new tokens, take two cores more
  // than a second to make and to train.
  CHECK(seconds < 0.01);
}

TEST_CASE("1,024 workers: each sample is trained once, within the staleness bound, also where a tenth of them dies") {
  VirtualRun run;
  run.num_workers = 1024;
  run.admission = {1024, 1, 1};
  run.num_samples = 2;
  run.credit = 4;
  run.num_steps = 4;
  run.rollout_time = [](uint64_t sample) { return (1 + static_cast<int>(sample % 7)) * kUnit; };
  bool has_struck = false;
  run.shard.on_train = [&](int, const TrainBatch& batch) {
    if (batch.step != 2 || std::exchange(has_struck, true)) return;
    for (size_t i = 0; i < 1024; i += 10) caf::anon_send_exit(run.rollouts[i], caf::exit_reason::kill);
  };
  REQUIRE(run.play());
  CHECK(run.code == 0);
  run.check_each_trained_once(4);
  CHECK(run.worst_lag <= 1);
  CHECK(run.rollouts.size() == 1024 + 103);
}

}  // namespace troupe
