// What a checkpoint keeps of work that is under way, and that a resumed run goes on with it: nothing is lost, nothing
// is doubled, whatever stood where when the run fell.
#include "actors/unfinished.h"

#include "tests/actors/virtual_run.h"

namespace troupe {
namespace {

using namespace actor_tests;

/// A worker that holds what it is told to and says how far it is.
class HoldingWork : public FakeWork {
 public:
  HoldingWork(Hooks hooks, std::function<bool(uint64_t)> holds)
      : FakeWork(std::move(hooks)), holds_(std::move(holds)) {}
  void add(const WorkOrder& order, size_t index) override {
    if (holds_(order.sample_ids[index]))
      held_[order.sample_ids[index]] = order.attempts[index];
    else
      FakeWork::add(order, index);
  }
  std::vector<Trajectory> unfinished() const override {
    std::vector<Trajectory> all;
    for (const auto& [id, attempt] : held_) {
      all.push_back(make_trajectory(id, attempt, version()));
      all.back().finish_reason = FinishReason::kError;
    }
    return all;
  }

 private:
  std::function<bool(uint64_t)> holds_;
  std::map<uint64_t, uint32_t> held_;
};

}  // namespace

TEST_CASE("the workers' half of groups.bin comes back; a file without it has none; a damaged one is refused") {
  const UnfinishedSamples samples{{7, "seven"}, {uint64_t{1} << 60, std::string("\0x", 2)}};
  const auto [buffer, back] = split_groups(join_groups("the buffer's", samples));
  CHECK(buffer == "the buffer's");
  CHECK((back == samples));
  const auto [old, none] = split_groups("of an older run");
  CHECK(old == "of an older run");
  CHECK(none.empty());
  CHECK(split_groups(join_groups("", {})).first.empty());
  auto damaged = join_groups("b", samples);
  damaged.erase(1, 20);
  CHECK_THROWS_AS(split_groups(damaged), Error);
  CHECK_THROWS_AS(unpack_unfinished("abc"), Error);
}

TEST_CASE("B086 samples that were generated but not trained at the save are trained once, over both runs") {
  // Three groups a step, up to six admitted: at the first save three of them stand complete and untrained.
  VirtualRun first;
  first.admission = {3, 1, 1};
  first.num_samples = 1;
  first.num_steps = 4;
  first.save_interval = 1;
  first.train_time = [](int, int64_t) { return kUnit; };
  first.shard.on_train = [](int, const TrainBatch& batch) {
    if (batch.step == 2) fail("power cut");
  };
  REQUIRE(first.play());
  CHECK(first.code == 1);
  CHECK(first.saved_steps == std::vector<int64_t>{1});
  VirtualRun second;
  second.admission = first.admission;
  second.num_samples = 1;
  second.num_steps = 4;
  second.resume(first);
  REQUIRE(second.play());
  CHECK(second.code == 0);
  const auto fates = second.fates();  // each once
  CHECK(fates.size() == 12);
  for (uint64_t group = 0; group < 12; ++group) CHECK(fates.at(make_sample_id(group, 0)) == "trained");
  for (const auto& [sample, times] : second.times_trained) CHECK(group_of_sample(sample) >= 3);
}

TEST_CASE("B087 prompts in flight at the save, a long one among them, go on with their tokens and are all trained") {
  const auto is_long = [](uint64_t sample) { return group_of_sample(sample) % 3 == 1; };
  VirtualRun first;
  first.admission = {2, 2, 6};
  first.num_samples = 1;
  first.num_steps = 5;
  first.save_interval = 1;
  first.credit = 8;
  first.shard.on_train = [](int, const TrainBatch& batch) {
    if (batch.step == 2) fail("power cut");
  };
  first.work_of = [&](int) { return std::make_unique<HoldingWork>(FakeWork::Hooks{}, is_long); };
  REQUIRE(first.play());
  CHECK(first.saved_steps == std::vector<int64_t>{1});

  VirtualRun second;
  second.admission = first.admission;
  second.num_samples = 1;
  second.num_steps = 5;
  second.credit = 8;
  std::map<uint64_t, std::string> went_on;
  second.work = [&](int) {
    return FakeWork::Hooks{[&](const WorkOrder& order, size_t i) {
                             if (i < order.so_far.size() && !order.so_far[i].empty())
                               went_on[order.sample_ids[i]] = order.so_far[i];
                           },
                           {}};
  };
  second.resume(first);
  CHECK(!second.unfinished.empty());
  const auto kept = second.unfinished;
  REQUIRE(second.play());
  CHECK(second.code == 0);
  CHECK((went_on == kept));
  for (const auto& [id, bytes] : kept) {
    CHECK(is_long(id));
    CHECK(is_unfinished(unpack({bytes})));
  }
  const auto fates = second.fates();
  for (uint64_t group = 0; group < 10; ++group) {
    CAPTURE(group);
    REQUIRE(fates.contains(make_sample_id(group, 0)));
    CHECK(fates.at(make_sample_id(group, 0)) == "trained");
  }
}

TEST_CASE("a sample that only waited for its score when the run fell is scored, not made again") {
  VirtualRun first;
  first.admission = {1, 1, 2};
  first.num_samples = 1;
  first.num_steps = 3;
  first.save_interval = 1;
  first.limit = first.score_limit = 1000 * kUnit;
  // The second group's verdict takes longer than the first step and its save.
  first.reward_time = [](uint64_t sample) { return (group_of_sample(sample) == 1 ? 500 : 1) * kUnit; };
  first.shard.on_train = [](int, const TrainBatch& batch) {
    if (batch.step == 2) fail("power cut");
  };
  REQUIRE(first.play());
  CHECK(first.saved_steps == std::vector<int64_t>{1});
  VirtualRun second;
  second.admission = first.admission;
  second.num_samples = 1;
  second.num_steps = 3;
  std::set<uint64_t> made;
  second.work = [&](int) {
    return FakeWork::Hooks{[&](const WorkOrder& order, size_t i) { made.insert(order.sample_ids[i]); }, {}};
  };
  second.resume(first);
  REQUIRE(second.unfinished.contains(make_sample_id(1, 0)));
  REQUIRE(second.play());
  CHECK(second.code == 0);
  CHECK_FALSE(made.contains(make_sample_id(1, 0)));
  CHECK(second.fates().at(make_sample_id(1, 0)) == "trained");
}

}  // namespace troupe
