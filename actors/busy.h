// How long an actor works: every handler, answers of others included, holds a Busy for as long as it runs.
#pragma once

#include <chrono>
#include <utility>

namespace troupe {

/// Seconds of work of one actor; not thread-safe.
class BusyTime {
 public:
  /// Since the last call.
  double take_s() { return std::exchange(sum_s_, 0.0); }

 private:
  friend class Busy;
  double sum_s_ = 0;
  bool is_counting_ = false;
};

/// Counts the time of its life, once where one lies within another.
class Busy {
 public:
  explicit Busy(BusyTime& time) : time_(time), is_outer_(!std::exchange(time.is_counting_, true)) {}
  ~Busy() {
    if (!is_outer_) return;
    time_.is_counting_ = false;
    time_.sum_s_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

 private:
  BusyTime& time_;
  bool is_outer_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace troupe
