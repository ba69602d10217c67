// Ranks as processes: the test program starts itself again, once a rank, with a test case that is skipped otherwise.
#pragma once

#include <fcntl.h>
#include <netinet/in.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "parallel/collectives.h"
#include "tests/doctest.h"

namespace troupe::parallel_testing {

/// A folder of this process's own, gone afterwards.
struct TestFolder {
  std::filesystem::path path;
  explicit TestFolder(const std::string& name)
      : path(std::filesystem::temp_directory_path() / concat("troupe-", name, "-", ::getpid())) {
    std::filesystem::remove_all(path);
    std::filesystem::create_directories(path);
  }
  ~TestFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
};

inline int free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  REQUIRE(::bind(socket, reinterpret_cast<sockaddr*>(&address), length) == 0);
  REQUIRE(::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length) == 0);
  ::close(socket);
  return ntohs(address.sin_port);
}

struct RankProcess {
  pid_t process = 0;
  std::filesystem::path answer;
};

/// Starts this program as one rank; its test case reads `environment(...)` and writes its answer to "ANSWER".
inline RankProcess start_rank(const std::string& test_case, const std::filesystem::path& folder,
                              const std::string& task, int rank, int size, int port) {
  RankProcess child;
  child.answer = folder / concat("answer-", rank);
  std::filesystem::remove(child.answer);
  std::vector<std::string> variables = {concat("TROUPE_TEST_TASK=", task),
                                        concat("TROUPE_TEST_RANK=", rank),
                                        concat("TROUPE_TEST_SIZE=", size),
                                        concat("TROUPE_TEST_PORT=", port),
                                        concat("TROUPE_TEST_FOLDER=", folder.string()),
                                        concat("TROUPE_TEST_ANSWER=", child.answer.string())};
  std::vector<char*> all;
  for (char** variable = environ; *variable != nullptr; ++variable) all.push_back(*variable);
  for (auto& variable : variables) all.push_back(variable.data());
  all.push_back(nullptr);
  std::string program = "/proc/self/exe", filter = concat("--test-case=", test_case), skip = "--no-skip";
  char* arguments[] = {program.data(), filter.data(), skip.data(), nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
  REQUIRE(::posix_spawn(&child.process, program.c_str(), &actions, nullptr, arguments, all.data()) == 0);
  posix_spawn_file_actions_destroy(&actions);
  return child;
}

/// Its answer; every rank ends by itself, since every wait inside it has a limit.
inline std::string finish_rank(const RankProcess& child) {
  int status = 0;
  ::waitpid(child.process, &status, 0);
  return std::filesystem::exists(child.answer) ? read_file(child.answer) : concat("no answer, status ", status);
}

/// "TASK", "RANK", "SIZE", "PORT", "FOLDER" or "ANSWER" of this rank.
inline std::string environment(const std::string& name) {
  const char* value = std::getenv(("TROUPE_TEST_" + name).c_str());
  return value == nullptr ? "" : value;
}

inline GlooOptions own_gloo_options() {
  GlooOptions options;
  options.rank = std::stoi(environment("RANK"));
  options.size = std::stoi(environment("SIZE"));
  options.store_port = std::stoi(environment("PORT"));
  options.timeout = std::chrono::seconds(60);
  return options;
}

}  // namespace troupe::parallel_testing
