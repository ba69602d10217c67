#include "parallel/flight_recorder.h"

#include <algorithm>
#include <iomanip>
#include <sstream>

namespace troupe {

uint64_t FlightRecorder::begin(std::string_view operation, std::string_view label, int64_t bytes) {
  std::lock_guard lock(mutex_);
  auto& entry = ring_[num_started_ % ring_.size()];
  entry.sequence = ++num_started_;
  entry.operation = operation;
  entry.label = label;
  entry.bytes = bytes;
  entry.start = Clock::now();
  entry.done = false;
  return entry.sequence;
}

void FlightRecorder::end(uint64_t sequence) {
  std::lock_guard lock(mutex_);
  auto& entry = ring_[(sequence - 1) % ring_.size()];
  if (entry.sequence != sequence) return;  // overwritten: only where a ring of this size of calls ran meanwhile
  entry.end = Clock::now();
  entry.done = true;
}

std::string FlightRecorder::describe(size_t num_last) const {
  std::lock_guard lock(mutex_);
  if (num_started_ == 0) return "no collective so far";
  const auto count = std::min<uint64_t>({num_last, num_started_, ring_.size()});
  std::ostringstream out;
  out << std::fixed << std::setprecision(1);
  for (uint64_t sequence = num_started_ - count + 1; sequence <= num_started_; ++sequence) {
    const auto& entry = ring_[(sequence - 1) % ring_.size()];
    if (sequence != num_started_ - count + 1) out << ", ";
    out << '#' << sequence << ' ' << entry.operation << " '" << entry.label << "' ";
    if (entry.bytes >= 100'000) {
      out << static_cast<double>(entry.bytes) * 1e-6 << " MB ";
    } else {
      out << entry.bytes << " bytes ";
    }
    const std::chrono::duration<double, std::milli> elapsed = (entry.done ? entry.end : Clock::now()) - entry.start;
    out << (entry.done ? "done in " : "running for ");
    if (elapsed.count() < 1000) {
      out << elapsed.count() << " ms";
    } else {
      out << elapsed.count() * 1e-3 << " s";
    }
  }
  return out.str();
}

uint64_t FlightRecorder::num_started() const {
  std::lock_guard lock(mutex_);
  return num_started_;
}

}  // namespace troupe
