// A few threads that walk through the stages of one decode step together: every thread runs the same function, takes
// pieces of a stage's work, and meets the others at the end of the stage.
//
//   caller   run(f) -> f(0) ... share(stage 0) | meet | share(stage 1) | meet ...
//   helper 1           f(1) ... share(stage 0) | meet | share(stage 1) | meet ...
//
// Waiting spins for some microseconds and then sleeps: cores are shared with other actors, and spinning while the
// awaited thread has no core would only keep it off. Pieces left over by a slow or descheduled thread are taken by the
// others.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace troupe {

class ThreadTeam {
 public:
  /// `num_threads` counts the caller.
  explicit ThreadTeam(int num_threads);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int size() const { return num_threads_; }
  /// Runs `function(thread)` on every thread of the team; returns when all are done. `function` must not throw and must
  /// pass the same sequence of stages on every thread, at most `num_stages` of them.
  void run(int num_stages, const std::function<void(int thread)>& function);

  /// Inside run: calls work(begin, end) for pieces of [0, count), each piece on one thread, and returns on every thread
  /// once all pieces are done. `stage` counts up from 0.
  template <class Work>
  void share(int thread, int stage, int64_t count, int64_t piece, Work&& work) {
    if (num_threads_ == 1) {
      if (count > 0) work(int64_t{0}, count);
      return;
    }
    const int64_t num_pieces = (count + piece - 1) / piece;
    // Each thread starts with its own range, in order, so that its reads of the weights stay sequential.
    for (int turn = 0; turn < num_threads_; ++turn) {
      const int owner = (thread + turn) % num_threads_;
      const int64_t first = num_pieces * owner / num_threads_, last = num_pieces * (owner + 1) / num_threads_;
      auto& taken = cursors_[static_cast<size_t>(stage) * num_threads_ + owner].taken;
      while (taken.load(std::memory_order_relaxed) < last - first) {
        const int64_t index = first + taken.fetch_add(1, std::memory_order_relaxed);
        if (index >= last) break;
        work(index * piece, std::min(count, (index + 1) * piece));
      }
    }
    meet();
  }

  /// Spins and then sleeps until `word` differs from `old`.
  static void wait_for_change(const std::atomic<int>& word, int old);

 private:
  struct alignas(64) Cursor {
    std::atomic<int64_t> taken{0};
  };

  void meet();
  void help(int thread);

  const int num_threads_;
  std::vector<Cursor> cursors_;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> meeting_{0};
  alignas(64) std::atomic<int> round_{0};
  const std::function<void(int)>* function_ = nullptr;  // null in a new round: the team ends
  std::vector<std::thread> helpers_;
};

}  // namespace troupe
