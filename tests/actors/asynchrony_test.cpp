// Who waits for whom, on virtual time with the real director, buffer, trainer and supervisor: overlap of the stages,
// the staleness bound of invariant 1, and that no prompt and no slot is ever lost.
#include "tests/actors/virtual_run.h"

namespace troupe {
namespace {

using namespace actor_tests;

constexpr auto kOne = [](auto...) { return kUnit; };

/// Rollout, reward and trainer need one unit each; the worker holds one batch at a time.
void set_unit_stages(VirtualRun& run, int64_t lag) {
  run.admission = {2, lag, 1};
  run.num_workers = 1;
  run.credit = 4;
  run.num_steps = 9;
  run.rollout_time = kOne;
  run.reward_time = kOne;
  run.train_time = kOne;
}

std::vector<int64_t> units(const std::vector<Milliseconds>& times) {
  std::vector<int64_t> units;
  for (const auto time : times) {
    CHECK(time % kUnit == Milliseconds(0));
    units.push_back(time / kUnit);
  }
  return units;
}

}  // namespace

TEST_CASE("rollout, reward and trainer of one unit each give one step a unit, not a third") {
  {
    VirtualRun run;
    set_unit_stages(run, 2);
    REQUIRE(run.play());
    CHECK(run.code == 0);
    CHECK(units(run.step_times) == std::vector<int64_t>{2, 3, 4, 5, 6, 7, 8, 9, 10});
    CHECK(run.worst_lag == 2);
  }
  {
    VirtualRun run;
    set_unit_stages(run, 0);
    REQUIRE(run.play());
    CHECK(units(run.step_times) == std::vector<int64_t>{2, 5, 8, 11, 14, 17, 20, 23, 26});
    CHECK(run.worst_lag == 0);
  }
  {
    VirtualRun run;
    set_unit_stages(run, 1);
    REQUIRE(run.play());
    CHECK(units(run.step_times) == std::vector<int64_t>{2, 3, 5, 6, 8, 9, 11, 12, 14});
    CHECK(run.worst_lag == 1);
  }
}

TEST_CASE("staleness stays within S + ceil((W-1)/P) with slow prompts and a worker that lags, for S in 0..3") {
  for (int64_t lag = 0; lag <= 3; ++lag) {
    for (const int64_t window : {1, 2, 4}) {
      VirtualRun run;
      run.admission = {2, lag, window};
      run.num_steps = 12;
      run.num_workers = 3;
      run.credit = 2;
      run.rollout_time = [](uint64_t sample) { return (group_of_sample(sample) % 5 == 2 ? 10 : 1) * kUnit; };
      run.reward_time = [](uint64_t) { return kUnit / 4; };
      run.train_time = kOne;
      run.weight_delay = [](int worker) { return worker == 2 ? 3 * kUnit : Milliseconds(0); };
      REQUIRE(run.play());
      CAPTURE(lag);
      CAPTURE(window);
      CHECK(run.code == 0);
      CHECK(run.worst_lag <= AdmissionLedger(run.admission).staleness_bound());
      CHECK(run.times_trained.size() == 12 * 2 * 2);
      for (const auto& [sample, times] : run.times_trained) CHECK(times == 1);
      if (window == 1) {  // strict order: batch k is groups kP .. (k+1)P-1
        uint64_t expected = 0;
        for (const auto& batch : run.batches)
          for (const auto group : batch) CHECK(group == expected++);
      }
      const auto metrics = run.metrics();
      REQUIRE(metrics.size() == 12);
      int64_t reported = 0;
      for (const auto& line : metrics)
        reported = std::max(reported, line.at("train_batch/policy_age_max").get<int64_t>());
      CHECK(reported == run.worst_lag);
    }
  }
}

TEST_CASE("a worker that lags gets no work of newer admissions, and nobody waits for it") {
  VirtualRun run;
  run.admission = {2, 1, 1};
  run.num_steps = 10;
  run.num_workers = 2;
  run.credit = 8;
  run.rollout_time = kOne;
  run.reward_time = kOne;
  run.train_time = kOne;
  run.weight_delay = [](int worker) { return worker == 1 ? 1000 * kUnit : Milliseconds(0); };
  REQUIRE(run.play(100 * kUnit));  // ends in the pace of the quick one (timed_rollout checks min_version)
  CHECK(run.code == 0);
  CHECK(run.step_times.back() <= 30 * kUnit);
}

TEST_CASE("B117 capacity never sticks at zero: a filter's rejection lets a third rollout start") {
  VirtualRun run;
  run.admission = {2, 0, 1};
  run.num_steps = 3;
  run.zero_variance = ZeroVariance::kRefill;
  run.rollout_time = kOne;
  run.reward_time = kOne;
  run.train_time = kOne;
  run.score = [](Trajectory& t) {  // the second group of the first batch is constant
    t.total_reward = t.group == 1 ? 1.0 : double(t.sample_id % kSamplesPerGroupLimit);
  };
  REQUIRE(run.play());
  CHECK(run.code == 0);
  CHECK(run.batches == std::vector<std::vector<uint64_t>>{{0, 2}, {3, 4}, {5, 6}});
  for (const auto& line : run.metrics()) CHECK(line.at("rollout_buffer/dropped/zero_variance") == 1);
  const auto fates = run.fates();
  CHECK(fates.size() == 14);
  CHECK(fates.at(make_sample_id(1, 0)) == "dropped: zero_variance");
  CHECK(fates.at(make_sample_id(1, 1)) == "dropped: zero_variance");
}

TEST_CASE("B118 a slow prompt is trained as surely as a quick one, and nothing is thrown away") {
  VirtualRun run;
  run.admission = {1, 1, 1};
  run.num_steps = 12;
  run.credit = 2;
  run.rollout_time = [](uint64_t sample) { return (group_of_sample(sample) % 2 == 1 ? 4 : 1) * kUnit; };
  run.reward_time = [](uint64_t) { return Milliseconds(0); };
  run.train_time = kOne;
  REQUIRE(run.play());
  int slow = 0;
  for (const auto& batch : run.batches) slow += batch.at(0) % 2 == 1;
  CHECK(slow == 6);
  for (const auto& [sample, fate] : run.fates()) CHECK(fate == "trained");
  CHECK(run.worst_lag <= 1);
}

TEST_CASE("B120 filtered groups are replaced: whole batches of whole groups, the surplus goes to the next step") {
  VirtualRun run;
  run.admission = {4, 0, 1};
  run.num_steps = 2;
  run.credit = 64;
  run.zero_variance = ZeroVariance::kRefill;
  run.rollout_time = kOne;
  run.reward_time = kOne;
  run.train_time = kOne;
  run.score = [](Trajectory& t) {
    t.total_reward = t.group % 2 == 0 ? 0.0 : double(t.sample_id % kSamplesPerGroupLimit);
  };
  REQUIRE(run.play());
  CHECK(run.batches.at(0) == std::vector<uint64_t>{1, 3, 5, 7});
  CHECK(run.batches.at(1).size() == 4);
  for (const auto& line : run.metrics()) {
    CHECK(line.at("train_batch/num_groups") == 4);
    CHECK(line.at("train_batch/num_samples") == 8);
  }
  for (const auto& [sample, times] : run.times_trained) CHECK(times == 1);
}

TEST_CASE("an evaluation at the start has the machine for itself; the best one is exported") {
  VirtualRun run;
  run.evaluate = true;
  run.num_steps = 3;
  std::vector<int64_t> evaluated;
  std::vector<std::string> written;
  run.evaluation = [&](int64_t step) {
    evaluated.push_back(step);
    if (step == 0) CHECK(run.times_trained.empty());
    return nlohmann::json{{"evaluation/score", step == 0 ? 0.25 : 0.75}};
  };
  run.shard.on_write = [&](const std::string& folder) { written.push_back(folder); };
  REQUIRE(run.play());
  CHECK(run.code == 0);
  CHECK(evaluated == std::vector<int64_t>{0, 3});
  CHECK(written == std::vector<std::string>{"best", "model"});
  CHECK(run.metrics().front().at("evaluation/score") == 0.25);
}

}  // namespace troupe
