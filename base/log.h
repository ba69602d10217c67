// Logging. spdlog stays behind this header: its fmt and torch's fmt cannot meet in one file.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"

namespace troupe::log {

enum class Level { kDebug, kInfo, kWarning, kError };

/// Lines below `level` are dropped. Default: info on stderr.
void set_level(Level level);
/// Also writes every line to `path` (appending), flushed at each line. Throws Error where it cannot be opened.
void add_file(const std::string& path);
/// Stops writing to files given by add_file.
void close_files();
/// While set, lines go to this function instead of stderr (the console's progress bar must be redrawn around them).
void set_console_sink(void (*sink)(std::string_view line));
void write(Level level, std::string_view message);

template <class... Ts>
void debug(const Ts&... parts) {
  write(Level::kDebug, concat(parts...));
}
template <class... Ts>
void info(const Ts&... parts) {
  write(Level::kInfo, concat(parts...));
}
template <class... Ts>
void warning(const Ts&... parts) {
  write(Level::kWarning, concat(parts...));
}
template <class... Ts>
void error(const Ts&... parts) {
  write(Level::kError, concat(parts...));
}

}  // namespace troupe::log
