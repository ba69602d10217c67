// What the ranks of one process share: the board on which each rank posts its call, the barrier around it, and the
// post boxes of send and receive. Knows no arithmetic (parallel/thread_collectives.cpp).
//
//   rank r:  post call -> meet() -> compare all calls -> copy from the peers' memory -> meet() -> return
//                                   '---- CopyGuard: nobody's memory may go away ----'
//
// A rank that is waiting may only leave (error, time-out) once no peer copies from its memory: hence the guard's count.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>

#include "models/torch.h"
#include "parallel/flight_recorder.h"

namespace troupe {

/// One rank's call as the peers see it between the two meetings.
struct ThreadCall {
  const char* operation = "";
  std::string label;
  at::ScalarType dtype = at::kFloat;
  int64_t numel = 0;  // of the full tensor; -1 where ranks may differ (all_to_all)
  int root = -1;
  const void* input = nullptr;
  void* output = nullptr;
  const std::vector<int64_t>* input_sizes = nullptr;
  int64_t row_elements = 0;
};

class ThreadGroup {
 public:
  ThreadGroup(int size, std::chrono::milliseconds timeout);
  int size() const { return size_; }

  ThreadCall& call(int rank) { return members_[static_cast<size_t>(rank)].call; }
  void set_recorder(int rank, std::shared_ptr<FlightRecorder> recorder) {
    members_[static_cast<size_t>(rank)].recorder = std::move(recorder);
  }

  using Clock = std::chrono::steady_clock;
  Clock::time_point deadline() const { return Clock::now() + timeout_; }
  /// Returns when every rank has called it as often as this one. Throws Error: a peer failed, or the deadline passed
  /// (which then fails the group), naming who is missing.
  void meet(int rank, Clock::time_point deadline);
  /// Throws Error (and fails the group) unless all ranks posted the same operation, label, dtype, size and root.
  void check_same(int rank);

  /// While it lives, no rank leaves its call. Throws where the group has failed meanwhile.
  class CopyGuard {
   public:
    explicit CopyGuard(ThreadGroup& group, int rank);
    ~CopyGuard();

   private:
    ThreadGroup& group_;
  };

  struct Message {
    std::string label;
    Tensor tensor;
  };
  void post(int from, int to, Message message, Clock::time_point deadline);
  Message take(int from, int to, Clock::time_point deadline);

  /// The first reason stays; wakes everybody.
  void fail_group(const std::string& reason);
  /// fail_group, then waits until no peer copies from the caller's memory.
  void fail_and_drain(const std::string& reason);
  void throw_if_failed(int rank);

 private:
  struct Member {
    ThreadCall call;
    std::atomic<uint64_t> num_meetings{0};
    std::shared_ptr<FlightRecorder> recorder;
  };
  /// Waits until `ready()`, at first spinning; `ready` is called again under the lock. False at the deadline.
  template <class Ready>
  bool wait(const Ready& ready, Clock::time_point deadline);
  void wake_all();
  void drain();
  [[noreturn]] void leave_failed(int rank);
  [[noreturn]] void time_out(int rank, const std::string& missing);
  std::deque<Message>& box(int from, int to) {
    return boxes_[static_cast<size_t>(from) * static_cast<size_t>(size_) + static_cast<size_t>(to)];
  }

  const int size_;
  const std::chrono::milliseconds timeout_;
  std::vector<Member> members_;
  std::vector<std::deque<Message>> boxes_;  // under mutex_
  std::atomic<int> num_arrived_{0};
  std::atomic<uint64_t> generation_{0};
  std::atomic<int> num_copying_{0};
  std::atomic<int> num_sleeping_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string reason_;  // under mutex_
};

}  // namespace troupe
