// One line a step, and on a terminal a progress bar with the time left below the log lines.
#pragma once

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>

namespace troupe::apps {

class Console {
 public:
  /// mode: "auto", "plain" or "quiet" (metrics.console); a line every `log_frequency` steps.
  Console(const std::string& mode, int64_t total_steps, int64_t log_frequency);
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  /// A step's metrics: prints the line and moves the bar.
  void step(const nlohmann::json& metrics);
  /// Progress without a line (for work that is not a train step).
  void progress(int64_t done);

 private:
  int64_t total_steps_, log_frequency_;
  bool quiet_, bar_;
  int64_t first_step_ = -1;
  std::chrono::steady_clock::time_point start_;
};

/// "loss  0.01234  reward 0.65 ..." of one step, in TorchTitan's order; metrics that are not there are left out.
std::string step_line(const nlohmann::json& metrics, int64_t total_steps);
/// "1:05", "2:03:20".
std::string duration_text(double seconds);

}  // namespace troupe::apps
