#include "rollout/thread_team.h"

namespace troupe {
namespace {

constexpr int kSpins = 1500;  // some tens of microseconds: longer than a stage's imbalance, shorter than a time slice

inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadTeam::ThreadTeam(int num_threads) : num_threads_(std::max(1, num_threads)) {
  for (int thread = 1; thread < num_threads_; ++thread) helpers_.emplace_back([this, thread] { help(thread); });
}

ThreadTeam::~ThreadTeam() {
  function_ = nullptr;
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (auto& helper : helpers_) helper.join();
}

void ThreadTeam::wait_for_change(const std::atomic<int>& word, int old) {
  for (int spin = 0; spin < kSpins; ++spin) {
    if (word.load(std::memory_order_acquire) != old) return;
    pause_briefly();
  }
  word.wait(old, std::memory_order_acquire);
}

void ThreadTeam::run(int num_stages, const std::function<void(int)>& function) {
  if (num_threads_ > 1) {
    const size_t needed = static_cast<size_t>(num_stages) * num_threads_;
    if (cursors_.size() < needed) cursors_ = std::vector<Cursor>(needed);
    for (auto& cursor : cursors_) cursor.taken.store(0, std::memory_order_relaxed);
    function_ = &function;
    round_.fetch_add(1, std::memory_order_release);
    round_.notify_all();
  }
  function(0);
  if (num_threads_ > 1) meet();  // nobody may still read `function` or the cursors
}

void ThreadTeam::meet() {
  const int meeting = meeting_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == num_threads_) {
    arrived_.store(0, std::memory_order_relaxed);
    meeting_.fetch_add(1, std::memory_order_release);
    meeting_.notify_all();
    return;
  }
  wait_for_change(meeting_, meeting);
}

void ThreadTeam::help(int thread) {
  for (int round = 0;; ++round) {
    wait_for_change(round_, round);
    if (function_ == nullptr) return;
    (*function_)(thread);
    meet();
  }
}

}  // namespace troupe
