// The decode step's threads: every piece of work once, stages in order, more threads than cores, quick ends.
#include <numeric>

#include "rollout/thread_team.h"
#include "tests/doctest.h"

namespace troupe {
namespace {

TEST_CASE("every index is worked on exactly once, whatever the pieces") {
  for (const int num_threads : {1, 2, 3, 5}) {
    ThreadTeam team(num_threads);
    CHECK(team.size() == num_threads);
    for (const int64_t count : {0, 1, 2, 7, 64, 1000}) {
      for (const int64_t piece : {1, 3, 64, 5000}) {
        std::vector<std::atomic<int>> visits(count);
        team.run(1, [&](int thread) {
          team.share(thread, 0, count, piece, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) visits[i].fetch_add(1);
          });
        });
        CHECK(std::all_of(visits.begin(), visits.end(), [](const auto& v) { return v.load() == 1; }));
      }
    }
  }
}

TEST_CASE("a stage sees all that the stage before it wrote, over many rounds") {
  constexpr int64_t kCount = 48;
  constexpr int kStages = 6, kRounds = 150;
  for (const int num_threads : {1, 2, 4}) {
    ThreadTeam team(num_threads);
    std::vector<int64_t> now(kCount), next(kCount);
    std::iota(now.begin(), now.end(), 0);
    std::vector<int64_t> expected = now;
    for (int round = 0; round < kRounds; ++round) {
      // Each stage mixes neighbours of the stage before: a piece that ran early would read an old value.
      team.run(kStages, [&](int thread) {
        for (int stage = 0; stage < kStages; ++stage) {
          auto& from = stage % 2 == 0 ? now : next;
          auto& to = stage % 2 == 0 ? next : now;
          team.share(thread, stage, kCount, 1 + stage, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) to[i] = (from[i] * 3 + from[(i + 17) % kCount] + stage) % 1000003;
          });
        }
      });
      for (int stage = 0; stage < kStages; ++stage) {
        const std::vector<int64_t> from = expected;
        for (int64_t i = 0; i < kCount; ++i) expected[i] = (from[i] * 3 + from[(i + 17) % kCount] + stage) % 1000003;
      }
    }
    CHECK((now == expected));
  }
}

TEST_CASE("each thread takes part under its own number; a run may have any number of stages") {
  ThreadTeam team(3);
  for (const int num_stages : {0, 1, 300, 2}) {
    std::vector<std::atomic<int>> calls(3), pieces(1);
    team.run(num_stages, [&](int thread) {
      calls[thread].fetch_add(1);
      for (int stage = 0; stage < num_stages; ++stage) {
        team.share(thread, stage, 2, 1, [&](int64_t, int64_t) { pieces[0].fetch_add(1); });
      }
    });
    for (const auto& count : calls) CHECK(count.load() == 1);
    CHECK(pieces[0].load() == 2 * num_stages);
  }
}

TEST_CASE("a team without work ends at once; a number below one means the caller alone") {
  for (int i = 0; i < 20; ++i) ThreadTeam team(4);
  ThreadTeam alone(0);
  int calls = 0;
  alone.run(1, [&](int thread) { calls += 1 + thread; });
  CHECK(calls == 1);
}

TEST_CASE("waiting for a change ends when the word differs already, and when another thread changes it") {
  std::atomic<int> word{3};
  ThreadTeam::wait_for_change(word, 2);
  std::thread other([&] {
    word.store(4);
    word.notify_all();
  });
  ThreadTeam::wait_for_change(word, 3);
  other.join();
  CHECK(word.load() == 4);
}

}  // namespace
}  // namespace troupe
