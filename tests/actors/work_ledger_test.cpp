#include "actors/work_ledger.h"

#include "actors/restart_policy.h"
#include "base/error.h"
#include "base/trajectory.h"
#include "tests/doctest.h"

namespace troupe {
namespace {

std::vector<uint64_t> samples_of(uint64_t group, uint32_t count) {
  std::vector<uint64_t> ids;
  for (uint32_t k = 0; k < count; ++k) ids.push_back(make_sample_id(group, k));
  return ids;
}

}  // namespace

TEST_CASE("groups go whole to the least loaded worker within its credit, oldest first") {
  WorkLedger work({});
  work.join(0, 8, 0);
  work.join(1, 8, 0);
  for (uint64_t g = 0; g < 5; ++g) work.add_group(g, static_cast<int64_t>(g), 0, samples_of(g, 4));
  auto issues = work.issue();
  REQUIRE(issues.size() == 4);
  CHECK(issues[0].worker == 0);
  CHECK(issues[1].worker == 1);
  CHECK(issues[2].worker == 0);
  CHECK(issues[3].worker == 1);
  for (const auto& issue : issues) CHECK(issue.sample_ids == samples_of(issue.group, 4));
  CHECK(work.issue().empty());
  CHECK(work.num_waiting() == 4);
  for (const auto id : samples_of(0, 4)) work.generated(0, id, 0);
  issues = work.issue();
  REQUIRE(issues.size() == 1);
  CHECK(issues[0].group == 4);
  CHECK(issues[0].worker == 0);
}

TEST_CASE("a worker that lags behind the admission version gets no work, and nobody waits for it") {
  WorkLedger work({});
  work.join(0, 4, 0);
  work.join(1, 4, 0);
  work.acknowledge(1, 3);
  work.add_group(7, 0, 3, samples_of(7, 2));
  work.add_group(8, 1, 3, samples_of(8, 2));
  auto issues = work.issue();
  REQUIRE(issues.size() == 2);
  CHECK(issues[0].worker == 1);
  CHECK(issues[1].worker == 1);
  CHECK(work.oldest_acknowledged() == 0);
}

TEST_CASE(
    "the samples of a lost worker are issued again with the next attempt; late answers of the old one are ignored") {
  WorkLedger work({});
  work.join(0, 4, 0);
  work.add_group(0, 0, 0, samples_of(0, 4));
  CHECK(work.issue().size() == 1);
  work.generated(0, make_sample_id(0, 0), 0);
  work.finished(make_sample_id(0, 0));
  work.generated(0, make_sample_id(0, 1), 0);  // being scored: its bytes may have died with the worker
  CHECK(work.leave(0) == 3);
  CHECK(work.issue().empty());
  work.join(1, 4, 0);
  const auto issues = work.issue();
  REQUIRE(issues.size() == 1);
  CHECK(issues[0].sample_ids ==
        std::vector<uint64_t>{make_sample_id(0, 1), make_sample_id(0, 2), make_sample_id(0, 3)});
  CHECK(issues[0].attempts == std::vector<uint32_t>{1, 1, 1});
  CHECK(work.num_reissued() == 3);
  work.failed(make_sample_id(0, 1), 0, "stale");  // of attempt 0
  CHECK(work.num_failures() == 0);
  work.finished(make_sample_id(0, 1));  // the old attempt's answer arrived after all: it is the first, it counts
  work.generated(1, make_sample_id(0, 1), 1);
  CHECK(work.num_outstanding() == 2);
}

TEST_CASE("a sample that fails again and again is given up with its reason, counted") {
  WorkLedger work({GroupToWorker::kLeastLoaded, 1, 3, 8});
  work.join(0, 4, 0);
  work.add_group(0, 0, 0, samples_of(0, 1));
  for (uint32_t attempt = 0; attempt < 3; ++attempt) {
    const auto issues = work.issue();
    REQUIRE(issues.size() == 1);
    CHECK(issues[0].attempts[0] == attempt);
    CHECK(work.take_given_up().empty());
    work.generated(0, 0, attempt);
    work.failed(0, attempt, "prompt too long");
  }
  const auto given = work.take_given_up();
  REQUIRE(given.size() == 1);
  CHECK(given[0].reason == "prompt too long (attempt 3 of 3)");
  CHECK(work.issue().empty());
  CHECK(work.num_failures() == 3);
}

TEST_CASE("a sample under which workers keep dying is given up") {
  WorkLedger work({GroupToWorker::kLeastLoaded, 1, 3, 2});
  work.add_group(0, 0, 0, samples_of(0, 1));
  for (int worker = 0; worker < 3; ++worker) {
    work.join(worker, 1, 0);
    CHECK(work.issue().size() == 1);
    work.leave(worker);
  }
  REQUIRE(work.take_given_up().size() == 1);
  CHECK(work.num_outstanding() == 0);
}

TEST_CASE("fixed homes wait for their worker, sticky ones do not") {
  WorkLedger fixed({GroupToWorker::kFixed, 2}), sticky({GroupToWorker::kSticky, 2});
  for (auto* work : {&fixed, &sticky}) {
    work->join(0, 4, 0);
    work->add_group(1, 0, 0, samples_of(1, 2));
    work->add_group(2, 1, 0, samples_of(2, 2));
  }
  auto issues = fixed.issue();
  REQUIRE(issues.size() == 1);
  CHECK(issues[0].group == 2);
  fixed.join(1, 4, 0);
  issues = fixed.issue();
  REQUIRE(issues.size() == 1);
  CHECK(issues[0].worker == 1);
  CHECK(sticky.issue().size() == 2);
  CHECK_THROWS_AS(parse_group_to_worker("random"), UsageError);
}

TEST_CASE("a group larger than a worker is cut to its credit") {
  WorkLedger work({});
  work.join(0, 3, 0);
  work.join(1, 3, 0);
  work.add_group(0, 0, 0, samples_of(0, 8));
  const auto issues = work.issue();
  REQUIRE(issues.size() == 2);
  CHECK(issues[0].sample_ids.size() == 3);
  CHECK(issues[1].sample_ids.size() == 3);
  CHECK(work.num_waiting() == 2);
}

TEST_CASE("restart pauses grow inside the window and end after n") {
  using namespace std::chrono_literals;
  RestartPolicy policy({3, 10'000ms, 100ms, 30'000ms});
  const RestartPolicy::Time start{};
  CHECK(policy.next_pause(start) == 100ms);
  CHECK(policy.next_pause(start + 1s) == 200ms);
  CHECK(policy.next_pause(start + 2s) == 400ms);
  CHECK_FALSE(policy.next_pause(start + 3s).has_value());
  CHECK(policy.next_pause(start + 12500ms) == 100ms);  // all three left the window
}

}  // namespace troupe
