#include "actors/play.h"

#include <semaphore.h>

#include <caf/all.hpp>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "actors/error.h"
#include "base/log.h"

namespace troupe {
namespace {

struct SystemConfig : caf::actor_system_config {
  explicit SystemConfig(int num_threads) {
    add_message_types<caf::id_block::troupe>();
    add_error_text(*this);
    set("scheduler.max-threads", static_cast<uint64_t>(num_threads));
  }
};

/// SIGINT and SIGTERM become calls on a thread of their own. A handler that posts a semaphore, not a blocked mask:
/// threads that exist already (OpenMP) would take a blocked signal's default action for us.
class SignalWatch {
 public:
  explicit SignalWatch(std::function<void()> on_first) : on_first_(std::move(on_first)) {
    sem_init(&posted_, 0, 0);
    ending_ = false;
    struct sigaction action {};
    action.sa_handler = [](int) { sem_post(&posted_); };
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, &before_interrupt_);
    sigaction(SIGTERM, &action, &before_terminate_);
    thread_ = std::thread([this] { watch(); });
  }
  ~SignalWatch() {
    sigaction(SIGINT, &before_interrupt_, nullptr);
    sigaction(SIGTERM, &before_terminate_, nullptr);
    ending_ = true;
    sem_post(&posted_);
    thread_.join();
    sem_destroy(&posted_);
  }

 private:
  void watch() {
    bool first = true;
    while (true) {
      while (sem_wait(&posted_) != 0) continue;
      if (ending_) return;
      if (!first) {
        log::warning("second signal: ending at once");
        std::_Exit(static_cast<int>(ExitCode::kInterrupted));
      }
      first = false;
      log::info("interrupted: finishing the step, then a checkpoint; again to end at once");
      on_first_();
    }
  }

  static inline sem_t posted_;
  static inline std::atomic<bool> ending_;
  std::function<void()> on_first_;
  struct sigaction before_interrupt_ {
  }, before_terminate_{};
  std::thread thread_;
};

/// Ends the process where the actors do not end in time (a frozen rank or engine holds its thread for ever).
class Watchdog {
 public:
  Watchdog(std::chrono::milliseconds grace, int exit_code, const std::function<void()>& on_forced_end)
      : thread_([this, grace, exit_code, on_forced_end] {
          std::unique_lock lock(mutex_);
          if (done_.wait_for(lock, grace, [this] { return is_done_; })) return;
          // A worker that froze, and was replaced, holds its thread for ever: the run itself may well be done.
          log::warning("shutdown: not every actor ended within ", grace.count(),
                       " ms (a frozen engine or rank); ending the process");
          if (on_forced_end) on_forced_end();
          std::_Exit(exit_code);
        }) {}
  ~Watchdog() {
    {
      const std::lock_guard lock(mutex_);
      is_done_ = true;
    }
    done_.notify_all();
    thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable done_;
  bool is_done_ = false;
  std::thread thread_;
};

}  // namespace

int play(CastList cast, const PlayOptions& options) {
  int32_t code = 1;
  std::string cause;
  std::optional<Watchdog> watchdog;  // outlives the system: its destructor waits for the actors
  {
    SystemConfig config(options.num_scheduler_threads);
    caf::actor_system system(config);
    std::optional<SignalWatch> signals;
    const auto supervisor = spawn_supervisor(system, std::move(cast));
    if (options.handle_signals) signals.emplace([supervisor] { caf::anon_send(supervisor, atom::interrupt_v); });
    {
      caf::scoped_actor self(system);
      // The one wait without a limit: the run itself. Whatever hangs inside of it has its own.
      self->request(supervisor, caf::infinite, atom::ended_v)
          .receive(
              [&](int32_t code_of_run, std::string& cause_of_run) {
                code = code_of_run;
                cause = std::move(cause_of_run);
              },
              [&](const caf::error& error) { cause = "the supervisor fell: " + describe_error(error, system); });
    }
    if (!cause.empty()) log::error(cause);
    watchdog.emplace(options.shutdown_grace, code, options.on_forced_end);
  }
  return code;
}

}  // namespace troupe
