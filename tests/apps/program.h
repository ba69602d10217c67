// The real program as a child process, for tests of what users see: lines, signals, exit codes.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>

#include "tests/actors/tiny_run.h"

extern char** environ;

namespace troupe::actor_tests {

/// `troupe` as a child process whose lines are read one by one; killed where it is silent for a minute, or where a line
/// that is waited for does not come within two.
class Program {
 public:
  explicit Program(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), TROUPE_BINARY_DIR "/bin/troupe");
    REQUIRE_MESSAGE(std::filesystem::exists(arguments[0]), "build the target troupe first");
    std::vector<char*> pointers;
    for (auto& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 2);
    REQUIRE(::posix_spawn(&process_, pointers[0], &actions, nullptr, pointers.data(), environ) == 0);
    posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    output_ = ends[0];
  }
  ~Program() {
    if (process_ > 0) {
      ::kill(process_, SIGKILL);
      ::waitpid(process_, nullptr, 0);
    }
    ::close(output_);
  }
  /// Reads until a line holds `part`; false at the end of the output.
  bool wait_for_line(const std::string& part) {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    for (std::string line; read_line(line);) {
      if (line.find(part) != std::string::npos) return true;
      if (std::chrono::steady_clock::now() < give_up) continue;
      ::kill(process_, SIGKILL);
      FAIL("no line with \"", part, "\" within two minutes; the last one: ", line);
    }
    return false;
  }
  void interrupt() const { signal(SIGINT); }
  void signal(int number) const { REQUIRE(::kill(process_, number) == 0); }
  /// Waits for such a line; what stands in it after `part`.
  std::string rest_of_line(const std::string& part) {
    REQUIRE_MESSAGE(wait_for_line(part), "no line with \"", part, "\" in:\n", text);
    const auto begin = text.rfind(part) + part.size();
    return text.substr(begin, text.find('\n', begin) - begin);
  }
  /// Reads the rest; the exit code, or -1 where it was killed.
  int finish() {
    wait_for_line("\n");  // which stands in no line
    int status = 0;
    REQUIRE(::waitpid(process_, &status, 0) == process_);
    process_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  std::string text;  // all that was said

 private:
  bool read_line(std::string& line) {
    while (true) {
      const auto end = buffer_.find('\n');
      if (end != std::string::npos) {
        line = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        text += line + "\n";
        return true;
      }
      pollfd ready{output_, POLLIN, 0};
      if (::poll(&ready, 1, 60'000) <= 0) {
        ::kill(process_, SIGKILL);
        FAIL("no line within a minute after:\n", text);
      }
      char bytes[4096];
      const auto count = ::read(output_, bytes, sizeof bytes);
      if (count <= 0) return false;
      buffer_.append(bytes, static_cast<size_t>(count));
    }
  }
  pid_t process_ = -1;
  int output_ = -1;
  std::string buffer_;
};

/// Where workers may join, as the run says it.
inline std::string join_address(Program& run) {
  const auto rest = run.rest_of_line("troupe worker --join ");
  return rest.substr(0, rest.find(' '));
}

inline std::string write_config(const TinyRun& run, const std::string& more) {
  const auto path = run.folder.path / "run.toml";
  std::ofstream(path) << "[run]\nname = \"tiny\"\nfolder = \"" << run.topology.run.folder << "\"\n[model]\npath = \""
                      << run.topology.model.path << "\"\nrandom_init = true\n[data]\nkind = \"jsonl\"\npaths = [\""
                      << run.topology.data.paths[0]
                      << "\"]\n[async_loop]\nnum_prompts_per_train_step = 8\nnum_samples_per_prompt = 8\n"
                         "target_offpolicy_steps = 1\n[sampling]\nmax_new_tokens = 16\n[rollout]\ndtype = \"float32\"\n"
                         "[algorithm]\nname = \"grpo\"\nzero_variance = \"keep\"\n[[reward]]\nkind = \"exact\"\n"
                      << more;
  return path.string();
}

}  // namespace troupe::actor_tests
