#include "actors/child_process.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

#include "base/error.h"

extern char** environ;

namespace troupe {

ChildProcess::ChildProcess(const std::string& command,
                           const std::vector<std::pair<std::string, std::string>>& environment) {
  // Everything is laid out before the fork: between fork and exec only system calls are allowed.
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    bool is_replaced = false;
    for (const auto& [name, value] : environment) is_replaced |= text.starts_with(name + "=");
    if (!is_replaced) variables.push_back(text);
  }
  for (const auto& [name, value] : environment) variables.push_back(concat(name, "=", value));
  std::vector<char*> pointers;
  for (auto& variable : variables) pointers.push_back(variable.data());
  pointers.push_back(nullptr);
  std::string shell = "/bin/sh", option = "-c", text = command;
  char* arguments[] = {shell.data(), option.data(), text.data(), nullptr};
  const auto parent = ::getpid();
  id_ = ::fork();
  require(id_ >= 0, "cannot start ", command, ": ", std::strerror(errno));
  if (id_ == 0) {
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);  // it died in between
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::signal(SIGINT, SIG_DFL);
    ::signal(SIGTERM, SIG_DFL);
    ::dup2(2, 1);  // what it prints does not mix with the run's own output
    ::execve(arguments[0], arguments, pointers.data());
    ::_exit(127);
  }
  ::setpgid(id_, id_);  // whichever of the two comes first
}

std::optional<std::string> ChildProcess::outcome() {
  if (outcome_) return outcome_;
  int status = 0;
  if (::waitpid(id_, &status, WNOHANG) != id_) return std::nullopt;
  outcome_ = WIFEXITED(status) ? concat("exit code ", WEXITSTATUS(status)) : concat("signal ", WTERMSIG(status));
  return outcome_;
}

void ChildProcess::kill() { ::kill(-id_, SIGKILL); }

ChildProcess::~ChildProcess() {
  ::kill(-id_, SIGTERM);
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
  while (!outcome() && std::chrono::steady_clock::now() < give_up)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  kill();  // of the group, whoever is left in it
  if (!outcome_) ::waitpid(id_, nullptr, 0);
}

}  // namespace troupe
