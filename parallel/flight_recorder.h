// The last collectives of one rank with their start and end times: what a time-out shows of every rank, so that a hang
// names who stopped where. A ring: a long run costs no memory.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

class FlightRecorder {
 public:
  explicit FlightRecorder(size_t capacity = 32) : ring_(capacity) {}

  /// Notes that a collective starts; returns its sequence number (1, 2, ...).
  uint64_t begin(std::string_view operation, std::string_view label, int64_t bytes);
  /// Notes that it is done. Without this call it counts as running.
  void end(uint64_t sequence);
  /// The newest `num_last` entries, oldest first: "#7 all_gather 'unit 1 forward' 7.1 MB done in 3.2 ms, #8 ... running
  /// for 5.0 s".
  std::string describe(size_t num_last = 4) const;
  uint64_t num_started() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Entry {
    uint64_t sequence = 0;
    std::string operation, label;
    int64_t bytes = 0;
    Clock::time_point start, end;
    bool done = false;
  };
  mutable std::mutex mutex_;
  std::vector<Entry> ring_;
  uint64_t num_started_ = 0;
};

}  // namespace troupe
