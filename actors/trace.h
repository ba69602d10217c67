// Who was busy when: sums per role for the idle shares, and, where wanted, every span as a Chrome trace
// (chrome://tracing, Perfetto). Thread-safe; a span costs one lock.
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace troupe {

class Trace {
 public:
  using Clock = std::chrono::steady_clock;
  explicit Trace(bool keep_events) : keep_events_(keep_events) {}

  /// Busy from its construction to its end. Spans of one role must not overlap.
  class Span {
   public:
    Span(Trace& trace, std::string role, std::string name)
        : trace_(trace), role_(std::move(role)), name_(std::move(name)), begin_(Clock::now()) {
      trace_.begin(role_, name_, begin_);
    }
    ~Span() { trace_.add(role_, name_, begin_, Clock::now()); }
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

   private:
    Trace& trace_;
    std::string role_, name_;
    Clock::time_point begin_;
  };

  /// What a role is at from now on, until its next `add`.
  void begin(const std::string& role, const std::string& name, Clock::time_point begin);
  void add(const std::string& role, const std::string& name, Clock::time_point begin, Clock::time_point end);
  /// Busy seconds per role so far, in spans that have ended.
  std::map<std::string, double> busy_s() const;
  struct Doing {
    std::string name;
    double for_s = 0;
  };
  /// What each role that is busy is doing now.
  std::map<std::string, Doing> doing() const;
  /// {"traceEvents": [...]} with one thread a role.
  void write(const std::filesystem::path& path) const;

 private:
  struct Event {
    int role;
    std::string name;
    int64_t begin_us, duration_us;
  };
  static constexpr size_t kMostEvents = 1'000'000;  // about 60 MB; later spans only count

  const Clock::time_point start_ = Clock::now();
  bool keep_events_;
  mutable std::mutex mutex_;
  std::map<std::string, double> busy_s_;
  std::map<std::string, std::pair<std::string, Clock::time_point>> doing_;
  std::vector<std::string> roles_;
  std::vector<Event> events_;
  int64_t num_left_out_ = 0;
};

}  // namespace troupe
