// The fields of a trajectory that only some runs fill: reference log-probs, values, the greedy baseline's reward.
#include "base/trajectory.h"
#include "base/error.h"
#include "tests/doctest.h"

namespace troupe {
namespace {

Trajectory sample() {
  Trajectory t;
  t.group = 3;
  t.sample_id = make_sample_id(3, 1);
  t.tokens = {1, 2, 3};
  t.prompt_length = 2;
  t.loss_mask = {0, 0, 1};
  t.log_probs = {0, 0, -1.5f};
  t.versions = {{2, 7}};
  return t;
}

}  // namespace

TEST_CASE("a trajectory's optional fields survive packing") {
  auto t = sample();
  CHECK(unpack_trajectory(pack_trajectory(t)) == t);
  t.reference_log_probs = {0, 0, -1.25f};
  t.values = {0, 0.5f, 0.75f};
  t.baseline_reward = 0.0;
  t.environment_reward = -0.5;
  const auto back = unpack_trajectory(pack_trajectory(t));
  CHECK(back == t);
  CHECK(back.baseline_reward == 0.0);
  CHECK(back.environment_reward == -0.5);
}

TEST_CASE("a trajectory with too few values or reference log-probs is refused by name") {
  auto t = sample();
  t.values = {0};
  CHECK_THROWS_WITH_AS(check_trajectory(t), "sample 12289: 1 values for 3 tokens", Error);
  t.values.clear();
  t.reference_log_probs = {0, 0};
  CHECK_THROWS_WITH_AS(check_trajectory(t), "sample 12289: 2 reference log-probs for 3 tokens", Error);
}

}  // namespace troupe
