// Admission and staleness (invariant 1), on a virtual clock: the plain logic of director and buffer without any actor.
#include "actors/admission.h"

#include <queue>
#include <set>

#include "actors/group_buffer.h"
#include "actors/work_ledger.h"
#include "base/error.h"
#include "tests/doctest.h"

namespace troupe {
namespace {

constexpr int64_t kSamples = 2;

struct Simulation {
  int64_t groups_per_step = 2, lag = 1, window = 1, num_steps = 20;
  int num_workers = 2, credit = 4;
  int64_t train_ticks = 1;
  int64_t weight_delay_ticks = 0;  // of the last worker: it applies weights that much later
  bool admission_order = true;     // false: the buffer takes whatever is complete first
  std::function<int64_t(uint64_t)> rollout_ticks = [](uint64_t) { return 1; };
  std::function<double(uint64_t sample)> reward = [](uint64_t sample) {
    return double(sample % kSamplesPerGroupLimit);
  };
  ZeroVariance zero_variance = ZeroVariance::kKeep;

  // Results
  int64_t worst_lag = 0, end_tick = 0, idle_capacity_ticks = 0, num_live_max = 0;
  std::map<uint64_t, int> times_trained;
  std::vector<std::vector<uint64_t>> batches;
  std::map<std::string, int64_t> dropped;

  void run() {
    AdmissionLedger slots({groups_per_step, lag, window});
    WorkLedger work({GroupToWorker::kLeastLoaded, num_workers});
    GroupBuffer buffer({groups_per_step, admission_order ? window : 1'000'000, zero_variance, 4});
    for (int w = 0; w < num_workers; ++w) work.join(w, credit, 0);
    struct Event {
      int64_t tick;
      int64_t sequence;
      std::function<void()> action;
      bool operator<(const Event& o) const { return std::tie(o.tick, o.sequence) < std::tie(tick, sequence); }
    };
    std::priority_queue<Event> events;
    int64_t now = 0, sequence = 0, step = 0;
    uint64_t next_prompt = 0;
    bool training = false;
    std::vector<int64_t> worker_version(num_workers, 0);
    const auto at = [&](int64_t tick, std::function<void()> action) {
      events.push({tick, sequence++, std::move(action)});
    };
    std::function<void()> pump = [&] {
      for (auto& gone : buffer.take_dropped()) {
        slots.drop(gone.group, gone.reason);
        work.remove_group(gone.group);
      }
      while (slots.num_free() > 0 && slots.num_live() < (num_steps - step) * groups_per_step) {
        const auto admission = slots.admit(next_prompt);
        std::vector<uint64_t> samples;
        for (uint32_t k = 0; k < kSamples; ++k) samples.push_back(make_sample_id(next_prompt, k));
        buffer.admit(next_prompt, admission.index, kSamples);
        work.add_group(next_prompt++, admission.index, admission.version, samples);
      }
      num_live_max = std::max(num_live_max, slots.num_live());
      for (const auto& issue : work.issue()) {
        for (size_t i = 0; i < issue.sample_ids.size(); ++i) {
          const auto id = issue.sample_ids[i];
          const auto attempt = issue.attempts[i];
          const auto worker = issue.worker;
          const auto version = worker_version[worker];  // the first token's: the sample's oldest
          CHECK(version >= issue.min_version);
          at(now + rollout_ticks(issue.group), [&, id, attempt, worker, version] {
            work.generated(worker, id, attempt);
            Trajectory t;
            t.sample_id = id;
            t.attempt = attempt;
            t.group = group_of_sample(id);
            t.versions = {{0, version}};
            t.total_reward = reward(id);
            REQUIRE(buffer.put(std::move(t)) == PutResult::kAccepted);
            work.finished(id);
            pump();
          });
        }
      }
      if (training || step == num_steps) return;
      auto batch = buffer.take_batch();
      if (!batch) return;
      std::vector<uint64_t> places;
      std::vector<uint64_t> trained;
      for (const auto& group : batch->groups) {
        places.push_back(group.group);
        trained.push_back(group.group);
        ++times_trained[group.group];
        for (const auto& [id, sample] : group.samples) worst_lag = std::max(worst_lag, step - sample.oldest_version());
      }
      for (const auto& group : batch->left_out) places.push_back(group.group);
      batches.push_back(trained);
      training = true;
      at(now + train_ticks, [&, places] {
        training = false;
        ++step;
        slots.train(places, step);
        for (const auto group : places) work.remove_group(group);
        for (int w = 0; w < num_workers; ++w) {
          const auto delay = w == num_workers - 1 ? weight_delay_ticks : 0;
          at(now + delay, [&, w, version = step] {
            worker_version[w] = version;
            work.acknowledge(w, version);
            pump();
          });
        }
        pump();
      });
      pump();
    };
    pump();
    while (!events.empty() && step < num_steps) {
      auto event = events.top();
      events.pop();
      now = event.tick;
      event.action();
    }
    end_tick = now;
    dropped = slots.dropped();
    CHECK(step == num_steps);
    CHECK(work.num_failures() == 0);
  }
};

}  // namespace

TEST_CASE("staleness stays within S for slow prompts, any S, and a worker that lags") {
  for (int64_t lag = 0; lag <= 3; ++lag) {
    for (const int64_t slow : {1, 4, 10}) {
      for (const int64_t delay : {0, 3}) {
        Simulation s;
        s.lag = lag;
        s.weight_delay_ticks = delay;
        s.rollout_ticks = [slow](uint64_t group) { return group % 5 == 2 ? slow : 1; };
        s.run();
        CAPTURE(lag);
        CAPTURE(slow);
        CAPTURE(delay);
        CHECK(s.worst_lag <= lag);
        CHECK(s.num_live_max <= (lag + 1) * s.groups_per_step);
        CHECK(s.times_trained.size() == static_cast<size_t>(s.num_steps * s.groups_per_step));
        for (const auto& [group, times] : s.times_trained) CHECK(times == 1);
        uint64_t expected = 0;  // strict order: batch k is groups kP .. (k+1)P-1
        for (const auto& batch : s.batches)
          for (const auto group : batch) CHECK(group == expected++);
      }
    }
  }
}

TEST_CASE("without the order one slow prompt breaks the bound; a window of W breaks it by (W-1)/P at most") {
  Simulation s;
  s.lag = 1;
  s.num_steps = 30;
  s.rollout_ticks = [](uint64_t group) { return group == 0 ? 10 : 1; };
  auto free_order = s;
  free_order.admission_order = false;
  free_order.run();
  CHECK(free_order.worst_lag > 1);  // shows that the check above can fail
  for (const int64_t window : {1, 2, 3, 5, 8}) {
    auto windowed = s;
    windowed.window = window;
    windowed.run();
    CAPTURE(window);
    CHECK(windowed.worst_lag <= AdmissionLedger({2, 1, window}).staleness_bound());
    CHECK(windowed.times_trained.at(0) == 1);
  }
  CHECK(AdmissionLedger({2, 1, 1}).staleness_bound() == 1);
  CHECK(AdmissionLedger({2, 1, 2}).staleness_bound() == 2);
  CHECK(AdmissionLedger({2, 1, 3}).staleness_bound() == 2);
  CHECK(AdmissionLedger({2, 1, 4}).staleness_bound() == 3);
}

TEST_CASE("S=0 is synchronous, S=1 overlaps generation and training") {
  Simulation s;
  s.num_steps = 10;
  s.lag = 0;
  s.credit = 16;
  auto synchronous = s, asynchronous = s;
  asynchronous.lag = 1;
  synchronous.run();
  asynchronous.run();
  CHECK(synchronous.end_tick == 20);   // one tick to generate, one to train, after each other
  CHECK(asynchronous.end_tick == 11);  // side by side after the first
  CHECK(synchronous.worst_lag == 0);
  CHECK(asynchronous.worst_lag == 1);
}

TEST_CASE("B117 capacity never stays at zero after a filter's rejection") {
  Simulation s;
  s.groups_per_step = 2;
  s.lag = 0;
  s.num_steps = 3;
  s.zero_variance = ZeroVariance::kRefill;
  s.reward = [](uint64_t sample) {  // group 1 of the first round is constant
    return group_of_sample(sample) == 1 ? 1.0 : double(sample % kSamplesPerGroupLimit);
  };
  s.run();
  CHECK(s.batches.at(0) == std::vector<uint64_t>{0, 2});
  CHECK(s.dropped.at("zero_variance") == 1);
  CHECK(s.batches.size() == 3);
}

TEST_CASE("B118 slow prompts are trained and nothing is discarded") {
  Simulation s;
  s.groups_per_step = 1;
  s.lag = 1;
  s.num_steps = 12;
  s.credit = 2;
  s.rollout_ticks = [](uint64_t group) { return group % 2 == 1 ? 4 : 1; };
  s.run();
  int slow_trained = 0;
  for (const auto& [group, times] : s.times_trained) slow_trained += group % 2 == 1 ? times : 0;
  CHECK(slow_trained >= 2);
  CHECK(slow_trained == 6);
  CHECK(s.dropped.empty());
  CHECK(s.worst_lag <= 1);
}

TEST_CASE("B120 filtered groups are replaced; sizes stay whole; what is over stays for the next step") {
  Simulation s;
  s.groups_per_step = 4;
  s.lag = 0;
  s.num_steps = 2;
  s.credit = 64;
  s.zero_variance = ZeroVariance::kRefill;
  s.reward = [](uint64_t sample) {
    return group_of_sample(sample) % 2 == 0 ? 0.0 : double(sample % kSamplesPerGroupLimit);
  };
  s.run();
  CHECK(s.batches.at(0) == std::vector<uint64_t>{1, 3, 5, 7});  // 8 groups = two rounds of 4
  CHECK(s.batches.at(1).size() == 4);
  for (const auto& [group, times] : s.times_trained) CHECK(times == 1);
}

TEST_CASE("admission refuses what would count twice") {
  AdmissionLedger slots({1, 1, 1});
  slots.admit(0);
  CHECK_THROWS(slots.admit(0));
  slots.admit(1);
  CHECK_THROWS_WITH(slots.admit(2), "group 2 cannot be admitted: all 2 slots are taken");
  slots.train({0}, 1);
  CHECK_THROWS(slots.train({0}, 2));
  CHECK_THROWS(slots.drop(0, "failed"));
  slots.drop(1, "failed");
  CHECK(slots.dropped().at("failed") == 1);
  CHECK(slots.num_free() == 2);
  CHECK_THROWS_AS(AdmissionLedger({0, 1, 1}), UsageError);
  CHECK_THROWS_AS(AdmissionLedger({1, -1, 1}), UsageError);
  CHECK_THROWS_AS(AdmissionLedger({1, 0, 0}), UsageError);
}

}  // namespace troupe
