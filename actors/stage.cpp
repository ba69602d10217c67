#include "actors/stage.h"

#include <semaphore.h>

#include <atomic>
#include <caf/all.hpp>
#include <caf/io/all.hpp>
#include <cstdlib>

#include "actors/error.h"
#include "actors/messages.h"
#include "actors/question.h"
#include "base/error.h"
#include "base/log.h"

namespace troupe {
namespace {

sem_t posted;
std::atomic<bool> ending;

caf::timespan timespan(double seconds) {
  return std::chrono::duration_cast<caf::timespan>(std::chrono::duration<double>(seconds));
}

}  // namespace

StageConfig::StageConfig(int num_threads) {
  add_message_types<caf::id_block::troupe>();
  add_error_text(*this);
  set("scheduler.max-threads", static_cast<uint64_t>(num_threads));
}

void StageConfig::use_network(const NetworkOptions& options) {
  load<caf::io::middleman>();
  set("middleman.app-identifiers", std::vector<std::string>{concat("troupe-join-", kJoinProtocol)});
  set("middleman.heartbeat-interval", timespan(options.heartbeat_s));
  set("middleman.connection-timeout", timespan(options.lost_after_s));
}

SignalWatch::SignalWatch(std::string words, std::function<void()> on_first)
    : words_(std::move(words)), on_first_(std::move(on_first)) {
  sem_init(&posted, 0, 0);
  ending = false;
  struct sigaction action {};
  action.sa_handler = [](int) { sem_post(&posted); };
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, &before_interrupt_);
  sigaction(SIGTERM, &action, &before_terminate_);
  thread_ = std::thread([this] { watch(); });
}

SignalWatch::~SignalWatch() {
  sigaction(SIGINT, &before_interrupt_, nullptr);
  sigaction(SIGTERM, &before_terminate_, nullptr);
  ending = true;
  sem_post(&posted);
  thread_.join();
  sem_destroy(&posted);
}

void SignalWatch::watch() {
  bool first = true;
  while (true) {
    while (sem_wait(&posted) != 0) continue;
    if (ending) return;
    if (!first) {
      log::warning("second signal: ending at once");
      std::_Exit(static_cast<int>(ExitCode::kInterrupted));
    }
    first = false;
    log::info(words_);
    on_first_();
  }
}

Watchdog::Watchdog(std::chrono::milliseconds grace, int exit_code, std::function<void()> on_forced_end)
    : thread_([this, grace, exit_code, on_forced_end = std::move(on_forced_end)] {
        std::unique_lock lock(mutex_);
        if (done_.wait_for(lock, grace, [this] { return is_done_; })) return;
        // A worker that froze, and was replaced, holds its thread for ever: the run itself may well be done.
        log::warning("shutdown: not every actor ended within ", grace.count(),
                     " ms (a frozen engine or rank); ending the process. Who waits: ", who_waits());
        if (on_forced_end) on_forced_end();
        std::_Exit(exit_code);
      }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    is_done_ = true;
  }
  done_.notify_all();
  thread_.join();
}

}  // namespace troupe
