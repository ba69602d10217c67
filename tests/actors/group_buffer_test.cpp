#include "actors/batch_summary.h"
#include "actors/group_buffer.h"

#include "actors/admission.h"
#include "base/error.h"
#include "tests/doctest.h"

namespace troupe {
namespace {

Trajectory sample(uint64_t group, uint32_t index, std::optional<double> reward, uint32_t attempt = 0) {
  Trajectory t;
  t.sample_id = make_sample_id(group, index);
  t.group = group;
  t.attempt = attempt;
  t.tokens = {1, 2, 3};
  t.prompt_length = 2;
  t.loss_mask = {0, 0, 1};
  t.log_probs = {0, 0, -1};
  t.versions = {{2, 0}};
  t.total_reward = reward;
  return t;
}

void put_group(GroupBuffer& buffer, uint64_t group, const std::vector<std::optional<double>>& rewards) {
  for (uint32_t k = 0; k < rewards.size(); ++k) CHECK(buffer.put(sample(group, k, rewards[k])) == PutResult::kAccepted);
}

std::vector<uint64_t> ids(const GroupBatch& batch) {
  std::vector<uint64_t> all;
  for (const auto& group : batch.groups) all.push_back(group.group);
  return all;
}

}  // namespace

TEST_CASE("the first answer of a sample counts, others are counted away") {
  GroupBuffer buffer({1, 1, ZeroVariance::kKeep});
  buffer.admit(5, 0, 2);
  CHECK(buffer.put(sample(5, 0, 1.0, 1)) == PutResult::kAccepted);
  CHECK(buffer.put(sample(5, 0, 0.0, 0)) == PutResult::kDuplicate);
  CHECK(buffer.put(sample(6, 0, 0.0)) == PutResult::kUnknown);
  CHECK_FALSE(buffer.take_batch().has_value());
  CHECK(buffer.put(sample(5, 1, 0.0)) == PutResult::kAccepted);
  const auto batch = buffer.take_batch();
  REQUIRE(batch.has_value());
  CHECK(batch->num_samples() == 2);
  CHECK(batch->groups[0].samples.at(make_sample_id(5, 0)).attempt == 1);
  CHECK(buffer.put(sample(5, 1, 0.0, 2)) == PutResult::kUnknown);
  CHECK(buffer.num_duplicates() == 1);
  CHECK(buffer.num_unknown() == 2);
}

TEST_CASE("the greedy sample of a group is its baseline and no sample of the batch") {
  GroupBuffer buffer({1, 1, ZeroVariance::kKeep, 4, true});
  buffer.admit(5, 0, 3);
  put_group(buffer, 5, {1.0, 0.0, 0.75});
  auto batch = buffer.take_batch();
  REQUIRE(batch.has_value());
  CHECK(batch->num_samples() == 2);
  CHECK(batch->groups[0].baseline->total_reward == 0.75);
  for (const auto& [id, sample] : batch->groups[0].samples) CHECK(sample.baseline_reward == 0.75);
  // Without a graded greedy sample the others have nothing to be compared with.
  buffer.admit(6, 1, 2);
  buffer.admit(7, 2, 2);
  put_group(buffer, 6, {1.0, std::nullopt});
  CHECK(buffer.put(sample(7, 0, 1.0)) == PutResult::kAccepted);
  buffer.give_up(make_sample_id(7, 1), "late");
  const auto dropped = buffer.take_dropped();
  REQUIRE(dropped.size() == 2);
  for (const auto& group : dropped) CHECK(group.reason == "no_baseline");
}

TEST_CASE("batches come in admission order; a window lets complete groups overtake") {
  for (const int64_t window : {1, 2, 3}) {
    GroupBuffer buffer({2, window, ZeroVariance::kKeep});
    for (uint64_t g = 0; g < 4; ++g) buffer.admit(g, static_cast<int64_t>(g), 1);
    for (uint64_t g = 1; g < 4; ++g) put_group(buffer, g, {1.0});
    const auto early = buffer.take_batch();  // group 0 is still in flight
    CHECK(early.has_value() == (window == 3));
    if (early) CHECK(ids(*early) == std::vector<uint64_t>{1, 2});
    put_group(buffer, 0, {1.0});
    const auto batch = buffer.take_batch();
    REQUIRE(batch.has_value());
    CHECK(ids(*batch) == (window == 3 ? std::vector<uint64_t>{0, 3} : std::vector<uint64_t>{0, 1}));
  }
}

TEST_CASE("zero variance: keep trains, drop takes the place, refill gives it away") {
  for (const auto mode : {ZeroVariance::kKeep, ZeroVariance::kDrop, ZeroVariance::kRefill}) {
    GroupBuffer buffer({2, 1, mode});
    for (uint64_t g = 0; g < 2; ++g) buffer.admit(g, static_cast<int64_t>(g), 2);
    put_group(buffer, 0, {1.0, 1.0});
    put_group(buffer, 1, {1.0, 0.0});
    const auto dropped = buffer.take_dropped();
    const auto batch = buffer.take_batch();
    if (mode == ZeroVariance::kRefill) {
      REQUIRE(dropped.size() == 1);
      CHECK(dropped[0].reason == "zero_variance");
      CHECK(dropped[0].samples.size() == 2);
      CHECK_FALSE(batch.has_value());
    } else {
      CHECK(dropped.empty());
      REQUIRE(batch.has_value());
      CHECK(batch->groups.size() == (mode == ZeroVariance::kKeep ? 2 : 1));
      CHECK(batch->left_out.size() == (mode == ZeroVariance::kKeep ? 0 : 1));
    }
  }
  CHECK_THROWS_AS(parse_zero_variance("skip"), UsageError);
}

TEST_CASE("refilling ends: a short batch, or the cause where nothing can be trained on") {
  GroupBuffer some({2, 1, ZeroVariance::kRefill, 1});
  some.admit(0, 0, 2);
  put_group(some, 0, {0.0, 1.0});
  for (uint64_t g = 1; g < 4; ++g) {
    CHECK_FALSE(some.take_batch().has_value());
    some.admit(g, static_cast<int64_t>(g), 2);
    put_group(some, g, {1.0, 1.0});
  }
  GroupBuffer resumed({2, 1, ZeroVariance::kRefill, 1});
  resumed.load(some.save(), {0});
  const auto bytes = some.save();
  const std::string_view saved(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto size = resumed.groups().at(0).expected;
  CHECK(finished_samples({2, 1, ZeroVariance::kRefill, 1}, saved, {0}, size).size() == 1);
  CHECK_THROWS_WITH_AS(finished_samples({2, 1, ZeroVariance::kRefill, 1}, saved, {0}, size + 1),
                       doctest::Contains("async_loop.num_samples_per_prompt"), UsageError);
  for (auto* buffer : {&some, &resumed}) {
    const auto batch = buffer->take_batch();  // 4 of (1 + 1) * 2 judged
    REQUIRE(batch.has_value());
    CHECK(ids(*batch) == std::vector<uint64_t>{0});
    // The mean reward counts what was filtered: 1 of the trained samples and 6 of the dropped ones.
    const auto metrics = summarize_batch(*batch, 1, {})["metrics"];
    CHECK(metrics["reward/mean"].get<double>() == doctest::Approx(7.0 / 8));
    CHECK(metrics["train_batch/reward/mean"].get<double>() == doctest::Approx(0.5));
    CHECK(metrics["rollout_buffer/num_dropped/zero_variance"] == 3);
    CHECK(metrics["rollout_reward/group_zero_std_frac"].get<double>() == doctest::Approx(0.75));
  }

  for (const auto mode : {ZeroVariance::kDrop, ZeroVariance::kRefill}) {
    GroupBuffer none({2, 1, mode, 1});
    std::string cause;
    for (uint64_t g = 0; g < 4 && cause.empty(); ++g) {
      none.admit(g, static_cast<int64_t>(g), 2);
      put_group(none, g, {1.0, 1.0});
      try {
        const bool has_batch = none.take_batch().has_value();
        CHECK_FALSE(has_batch);
      } catch (const Error& error) {
        cause = error.what();
        CHECK(g == 3);
      }
    }
    CHECK(cause.find("4 zero_variance") != std::string::npos);
  }
}

TEST_CASE("refilling while the trainer is busy does not use up its rounds") {
  GroupBuffer buffer({2, 1, ZeroVariance::kRefill, 1});
  for (uint64_t g = 0; g < 10; ++g) {
    buffer.admit(g, static_cast<int64_t>(g), 2);
    put_group(buffer, g, {1.0, g < 8 ? 1.0 : 0.0});
  }
  const auto batch = buffer.take_batch();
  REQUIRE(batch.has_value());
  CHECK(ids(*batch) == std::vector<uint64_t>{8, 9});

  for (uint64_t g = 10; g < 17; ++g) {
    buffer.admit(g, static_cast<int64_t>(g), 2);
    put_group(buffer, g, {1.0, g == 14 ? 0.0 : 1.0});
  }
  buffer.begin_wait();
  CHECK_FALSE(buffer.take_batch().has_value());  // one good group, nothing judged since the wait began
}

TEST_CASE("failed samples leave their group smaller, failed groups free their slot by name") {
  GroupBuffer buffer({1, 1, ZeroVariance::kKeep});
  for (uint64_t g = 0; g < 3; ++g) buffer.admit(g, static_cast<int64_t>(g), 2);
  put_group(buffer, 0, {std::nullopt, std::nullopt});
  buffer.give_up(make_sample_id(1, 0), "too long");
  buffer.give_up(make_sample_id(1, 1), "too long");
  buffer.give_up(make_sample_id(1, 1), "too long");
  CHECK(buffer.put(sample(2, 0, 1.0)) == PutResult::kAccepted);
  buffer.give_up(make_sample_id(2, 0), "late news of an accepted sample");
  buffer.give_up(make_sample_id(2, 1), "too long");
  const auto dropped = buffer.take_dropped();
  REQUIRE(dropped.size() == 2);
  CHECK(dropped[0].reason == "no_reward");
  CHECK(dropped[1].reason == "failed");
  const auto batch = buffer.take_batch();
  REQUIRE(batch.has_value());
  CHECK(batch->num_samples() == 1);
}

TEST_CASE("where every sample fails, the cause tells what was said of the last") {
  GroupBuffer buffer({1, 1, ZeroVariance::kKeep, 1});
  buffer.begin_wait();
  for (uint64_t group = 0; group < 2; ++group) {
    CHECK(!buffer.take_batch());
    buffer.admit(group, static_cast<int64_t>(group), 1);
    buffer.give_up(make_sample_id(group, 0), concat("prompt ", group, " is too long"));
  }
  CHECK_THROWS_WITH(buffer.take_batch(), doctest::Contains("2 failed; the last failure: prompt 1 is too long"));
  auto ungraded = sample(2, 0, std::nullopt);
  ungraded.rewards = {{"exact", std::nullopt, "the record has no field \"answer\""}};
  buffer.admit(2, 2, 1);
  buffer.put(ungraded);
  CHECK_THROWS_WITH(buffer.take_batch(), doctest::Contains("the last failure: reward exact: the record has no field"));
}

TEST_CASE("groups of one sample are never constant, unrewarded samples do not count") {
  BufferedGroup group;
  group.expected = 1;
  group.samples[0] = sample(0, 0, 1.0);
  CHECK_FALSE(has_zero_variance(group));
  group.expected = 3;
  group.samples[1] = sample(0, 1, std::nullopt);
  CHECK(has_zero_variance(group));
  group.samples[2] = sample(0, 2, 0.5);
  CHECK_FALSE(has_zero_variance(group));
}

TEST_CASE(
    "B086 B087 what was generated but not trained survives a checkpoint; in-flight prompts are redone, none twice") {
  // Ids 0..9 admitted; 0..2 trained, 3 and 4 finished, 5 half finished, 6..9 in flight when the snapshot is made.
  AdmissionLedger slots({3, 3, 1});
  GroupBuffer buffer({3, 1, ZeroVariance::kKeep});
  for (uint64_t g = 0; g < 10; ++g) {
    const auto admission = slots.admit(g);
    buffer.admit(g, admission.index, 2);
  }
  std::map<uint64_t, int> trained;
  for (uint64_t g = 0; g < 5; ++g) put_group(buffer, g, {0.0, 1.0});
  CHECK(buffer.put(sample(5, 1, 1.0)) == PutResult::kAccepted);
  auto batch = buffer.take_batch();
  REQUIRE(batch.has_value());
  for (const auto group : ids(*batch)) ++trained[group];
  slots.train(ids(*batch), 1);
  const auto bytes = buffer.save();
  const auto live = slots.in_order();
  const auto next_prompt = uint64_t{10};

  AdmissionLedger resumed_slots({3, 3, 1}, 1);
  GroupBuffer resumed({3, 1, ZeroVariance::kKeep});
  std::vector<uint64_t> live_groups;
  for (const auto& admission : live) {
    resumed_slots.restore(admission);
    live_groups.push_back(admission.group);
  }
  resumed.load(bytes, live_groups);
  for (const auto& admission : live) {
    const auto& group = resumed.groups().at(admission.group);
    for (uint32_t k = 0; k < 2; ++k) {
      const bool finished = group.samples.contains(make_sample_id(admission.group, k));
      CHECK(finished == (admission.group < 5 || (admission.group == 5 && k == 1)));
      if (!finished) CHECK(resumed.put(sample(admission.group, k, k)) == PutResult::kAccepted);
    }
  }
  for (uint64_t g = next_prompt; g < 12; ++g) {
    const auto admission = resumed_slots.admit(g);
    resumed.admit(g, admission.index, 2);
    put_group(resumed, g, {0.0, 1.0});
  }
  int64_t version = 1;
  while (auto next = resumed.take_batch()) {
    for (const auto group : ids(*next)) ++trained[group];
    resumed_slots.train(ids(*next), ++version);
  }
  CHECK(trained.size() == 12);
  for (const auto& [group, times] : trained) CHECK(times == 1);
  CHECK(version == 4);
  auto cut = bytes;
  cut.resize(cut.size() - 3);
  GroupBuffer broken({3, 1, ZeroVariance::kKeep});
  CHECK_THROWS_WITH(broken.load(cut, live_groups), doctest::Contains("groups.bin"));
}

}  // namespace troupe
