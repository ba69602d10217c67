// How often and after which pause a fallen role is restarted: the pause doubles with each restart inside a window of
// time, and after `num_restarts` of them the role is given up.
#pragma once

#include <algorithm>
#include <chrono>
#include <deque>
#include <optional>

namespace troupe {

struct RestartOptions {
  int num_restarts = 5;
  std::chrono::milliseconds window{300'000};
  std::chrono::milliseconds first_pause{100};
  std::chrono::milliseconds longest_pause{30'000};
};

class RestartPolicy {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit RestartPolicy(RestartOptions options) : options_(options) {}
  /// The role fell at `now`: the pause before the next start, or none where patience is at its end.
  std::optional<std::chrono::milliseconds> next_pause(Time now) {
    while (!restarts_.empty() && now - restarts_.front() > options_.window) restarts_.pop_front();
    const auto count = static_cast<int>(restarts_.size());
    if (count >= options_.num_restarts) return std::nullopt;
    restarts_.push_back(now);
    auto pause = options_.first_pause;
    for (int i = 0; i < count && pause < options_.longest_pause; ++i) pause *= 2;
    return std::min(pause, options_.longest_pause);
  }
  int num_restarts() const { return static_cast<int>(restarts_.size()); }

 private:
  RestartOptions options_;
  std::deque<Time> restarts_;
};

}  // namespace troupe
