// Errors that reach the user: a message that names the thing, and the exit code of the program.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace troupe {

/// Exit codes of `troupe` (0 is success).
enum class ExitCode : int { kFailed = 1, kUsage = 2, kInterrupted = 130 };

/// Something went wrong that is not the caller's mistake in writing a configuration; exit code 1.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message, ExitCode exit_code = ExitCode::kFailed)
      : std::runtime_error(message), exit_code_(exit_code) {}
  ExitCode exit_code() const noexcept { return exit_code_; }

 private:
  ExitCode exit_code_;
};

/// Wrong command line or configuration; exit code 2. The message names the key, the value and what would be right.
class UsageError : public Error {
 public:
  explicit UsageError(const std::string& message) : Error(message, ExitCode::kUsage) {}
};

/// Concatenates anything that can be streamed: `concat("step ", 3)`.
template <class... Ts>
std::string concat(const Ts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

/// Throws Error with the concatenated message.
template <class... Ts>
[[noreturn]] void fail(const Ts&... parts) {
  throw Error(concat(parts...));
}

/// Throws Error unless `condition`. For what data or users can cause; stays on in every build.
template <class... Ts>
void require(bool condition, const Ts&... parts) {
  if (!condition) fail(parts...);
}

}  // namespace troupe
