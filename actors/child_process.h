// A program of the user's that runs beside the run: started in sh, ended with it. It has a process group of its own
// (Ctrl-C on the terminal is the run's affair) and dies with the thread that started it, also where that is killed.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace troupe {

class ChildProcess {
 public:
  /// Throws Error where it cannot be started; a command that sh does not find ends with code 127.
  ChildProcess(const std::string& command, const std::vector<std::pair<std::string, std::string>>& environment);
  /// Asks the group to end, and kills what is left of it after half a second.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  /// How it ended ("exit code 3", "signal 9"); none while it runs.
  std::optional<std::string> outcome();
  /// Ends the whole group at once.
  void kill();
  pid_t id() const { return id_; }

 private:
  pid_t id_ = -1;
  std::optional<std::string> outcome_;
};

}  // namespace troupe
