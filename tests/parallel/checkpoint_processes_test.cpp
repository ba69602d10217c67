// Checkpoints of ranks that are processes, and processes that are killed while they save.
#include <sys/resource.h>
#include <sys/time.h>

#include <set>

#include "parallel/checkpoint_folder.h"
#include "tests/doctest.h"
#include "tests/parallel/checkpoint_state.h"
#include "tests/parallel/processes.h"

using namespace troupe;
using namespace troupe::parallel_testing;

namespace {

namespace fs = std::filesystem;

constexpr const char* kRank = "one rank that saves";
constexpr int kNumKills = 20;

/// Saves step after step until a timer ends the process like kill -9 does: nothing of it runs any more.
[[noreturn]] void save_until_killed(const fs::path& folder, int microseconds) {
  at::set_num_threads(1);
  save_state(folder, 2, 1, 1);
  const itimerval timer{{0, 0}, {0, microseconds}};
  ::setitimer(ITIMER_REAL, &timer, nullptr);
  for (int64_t step = 2;; ++step) save_state(folder, 2, step % 4, static_cast<double>(step % 4), step % 2 == 0);
}

}  // namespace

TEST_CASE("one rank that saves" * doctest::skip()) {
  const fs::path folder = environment("FOLDER");
  const std::string task = environment("TASK");
  std::string answer = "done";
  try {
    if (task == "kills") {
      // Forked before this process has any thread.
      for (int i = 0; i < kNumKills; ++i) {
        const auto process = ::fork();
        if (process == 0) save_until_killed(folder / concat("killed-", i), 1000 + 4700 * i);
        int status = 0;
        ::waitpid(process, &status, 0);
        require(WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM, "process ", i, " ended by itself");
      }
    } else {
      const auto group = make_gloo_collectives(own_gloo_options());
      CheckpointState state(*group);
      state.fill(task == "dies" ? 1 : 2);
      // Rank 1 may die before the all-reduce below or after it; in the latter case rank 0 learns of it here.
      CheckpointWriter writer(*group, {.is_async = true, .timeout = std::chrono::seconds(task == "dies" ? 5 : 60)});
      if (task == "dies" && group->rank() == 1) {
        const rlimit small{8192, 8192};  // the system kills this rank in the middle of its file
        ::setrlimit(RLIMIT_FSIZE, &small);
      }
      writer.save({folder, 6, 6, "{\"step\":6}", "", 0}, state.values());
      auto loss = at::ones({1});
      group->all_reduce(loss, "loss of step 7");
      writer.wait();
      group->barrier("end");
    }
  } catch (const std::exception& error) {
    answer = error.what();
  }
  write_file_atomically(environment("ANSWER"), answer);
}

TEST_CASE(
    "B083 a rank killed in the middle of a save: its peer ends, and the next save of that step replaces the rest") {
  TestFolder folder("killed-rank");
  const auto run = [&](const std::string& task) {
    const int port = free_port();
    const auto first = start_rank(kRank, folder.path, task, 0, 2, port),
               second = start_rank(kRank, folder.path, task, 1, 2, port);
    const auto answer = finish_rank(first);
    return std::pair(answer, finish_rank(second));
  };
  const auto begin = std::chrono::steady_clock::now();
  const auto [left, killed] = run("dies");
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(50));  // the group's time limit is 60 s
  CHECK(killed == concat("no answer, status ", SIGXFSZ));
  CHECK_MESSAGE(left.find("rank 1") != std::string::npos, left);
  CHECK(!find_latest_checkpoint(folder.path).has_value());
  CHECK(checkpoints_newest_first(folder.path).empty());
  const auto [first, second] = run("saves");
  CHECK(first == "done");
  CHECK(second == "done");
  CHECK(!fs::exists(folder.path / "step-6.partial"));
  load_and_check(folder.path, 2, 2);
}

TEST_CASE("B082 a process killed at any moment of a save leaves a checkpoint that resumes right") {
  TestFolder folder("kills");
  REQUIRE(finish_rank(start_rank(kRank, folder.path, "kills", 0, 1, 0)) == "done");
  int num_partial = 0;
  for (int i = 0; i < kNumKills; ++i) {
    const auto path = folder.path / concat("killed-", i);
    const auto found = find_latest_checkpoint(path);
    REQUIRE(found.has_value());
    // Whatever is there is whole: each folder of every step holds the values of its own step.
    for (const auto& checkpoint : checkpoints_newest_first(path)) {
      const auto info = read_checkpoint_info(checkpoint);
      CHECK(info.state_json == concat("{\"step\":", info.step, "}"));
      run_ranks(1, [&](Collectives& collectives) {
        CheckpointState state(collectives);
        auto values = state.values();
        load_checkpoint_values(checkpoint, values);
        state.check(static_cast<double>(info.step));
      });
    }
    for (const auto& entry : fs::directory_iterator(path)) num_partial += entry.path().extension() == ".partial";
  }
  CHECK(num_partial > kNumKills / 4);  // or the moments missed what they are for
}
