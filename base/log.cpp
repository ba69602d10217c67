// The only file that sees spdlog.
#include "base/log.h"

#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <memory>
#include <mutex>

namespace troupe::log {
namespace {

std::atomic<void (*)(std::string_view)> console_sink{nullptr};

/// Writes to stderr, or to the function that draws the console.
class ConsoleSink : public spdlog::sinks::base_sink<std::mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t text;
    formatter_->format(message, text);
    std::string_view line(text.data(), text.size());
    if (auto* sink = console_sink.load()) {
      sink(line);
    } else {
      std::fwrite(line.data(), 1, line.size(), stderr);
    }
  }
  void flush_() override { std::fflush(stderr); }
};

struct Loggers {
  std::mutex mutex;
  std::shared_ptr<spdlog::logger> logger;
  Loggers() {
    logger = std::make_shared<spdlog::logger>("troupe", std::make_shared<ConsoleSink>());
    logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %L %v");
    logger->flush_on(spdlog::level::trace);
  }
};

Loggers& loggers() {
  static auto* instance = new Loggers;  // outlives every static destructor that might still log
  return *instance;
}

spdlog::level::level_enum to_spdlog(Level level) {
  switch (level) {
    case Level::kDebug:
      return spdlog::level::debug;
    case Level::kInfo:
      return spdlog::level::info;
    case Level::kWarning:
      return spdlog::level::warn;
    case Level::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

}  // namespace

void set_level(Level level) { loggers().logger->set_level(to_spdlog(level)); }

void add_file(const std::string& path) {
  try {
    auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path);
    sink->set_pattern("%Y-%m-%d %H:%M:%S.%e %L %v");
    std::scoped_lock lock(loggers().mutex);
    loggers().logger->sinks().push_back(std::move(sink));
  } catch (const spdlog::spdlog_ex& error) {
    fail("cannot open the log file ", path, ": ", error.what());
  }
}

void close_files() {
  std::scoped_lock lock(loggers().mutex);
  loggers().logger->sinks().resize(1);
}

void set_console_sink(void (*sink)(std::string_view)) { console_sink.store(sink); }

void write(Level level, std::string_view message) {
  loggers().logger->log(to_spdlog(level), spdlog::string_view_t(message.data(), message.size()));
}

}  // namespace troupe::log
