// What every process with actors has around them: the actor system's settings, signals as calls, and an end that comes
// whatever hangs.
#pragma once

#include <caf/actor_system_config.hpp>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace troupe {

/// How one process finds out that another is gone: a word every `heartbeat_s`, lost without one for `lost_after_s`.
struct NetworkOptions {
  double heartbeat_s = 1, lost_after_s = 10;
};

struct StageConfig : caf::actor_system_config {
  explicit StageConfig(int num_threads);
  /// Loads CAF's network module. Programs of another kind are refused by it.
  void use_network(const NetworkOptions& options);
};

/// SIGINT and SIGTERM become calls on a thread of their own; a second one ends the process at once. A handler that
/// posts a semaphore, not a blocked mask: threads that exist already (OpenMP) would take a blocked signal's default
/// action for us.
class SignalWatch {
 public:
  /// `words` are logged at the first signal.
  SignalWatch(std::string words, std::function<void()> on_first);
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

 private:
  void watch();

  std::string words_;
  std::function<void()> on_first_;
  struct sigaction before_interrupt_ {
  }, before_terminate_{};
  std::thread thread_;
};

/// Ends the process where the actors do not end in time (a frozen rank or engine holds its thread for ever).
class Watchdog {
 public:
  /// `on_forced_end`: last words before that; may be empty.
  Watchdog(std::chrono::milliseconds grace, int exit_code, std::function<void()> on_forced_end);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable done_;
  bool is_done_ = false;
  std::thread thread_;
};

}  // namespace troupe
