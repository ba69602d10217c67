// Gloo between real processes, joined through a TCP store: this program starts itself again for each rank.
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "tests/doctest.h"
#include "tests/parallel/tiny_model.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

using Clock = std::chrono::steady_clock;

int free_port() {
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

struct Child {
  pid_t process = 0;
  std::filesystem::path answer;
};

/// Starts this program as one rank; it writes its answer into a file of `folder`.
Child start(const std::filesystem::path& folder, const std::string& task, int rank, int size, int port) {
  Child child;
  child.answer = folder / concat("rank-", rank);
  std::vector<std::string> variables = {concat("TROUPE_TEST_TASK=", task), concat("TROUPE_TEST_RANK=", rank),
                                        concat("TROUPE_TEST_SIZE=", size), concat("TROUPE_TEST_PORT=", port),
                                        concat("TROUPE_TEST_ANSWER=", child.answer.string())};
  std::vector<char*> environment;
  for (char** variable = environ; *variable != nullptr; ++variable) environment.push_back(*variable);
  for (auto& variable : variables) environment.push_back(variable.data());
  environment.push_back(nullptr);
  std::string program = "/proc/self/exe", filter = "--test-case=one rank of a Gloo group", skip = "--no-skip";
  char* arguments[] = {program.data(), filter.data(), skip.data(), nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
  REQUIRE(::posix_spawn(&child.process, program.c_str(), &actions, nullptr, arguments, environment.data()) == 0);
  posix_spawn_file_actions_destroy(&actions);
  return child;
}

std::string finish(const Child& child) {
  int status = 0;
  ::waitpid(child.process, &status, 0);
  return std::filesystem::exists(child.answer) ? read_file(child.answer) : concat("no answer, status ", status);
}

struct Folder {
  std::filesystem::path path = std::filesystem::temp_directory_path() / concat("troupe-gloo-", ::getpid());
  Folder() { std::filesystem::create_directories(path); }
  ~Folder() { std::filesystem::remove_all(path); }
};

std::string variable(const char* name) { return std::getenv(name) == nullptr ? "" : std::getenv(name); }

}  // namespace

TEST_CASE("one rank of a Gloo group" * doctest::skip()) {
  GlooOptions options;
  options.rank = std::stoi(variable("TROUPE_TEST_RANK"));
  options.size = std::stoi(variable("TROUPE_TEST_SIZE"));
  options.store_port = std::stoi(variable("TROUPE_TEST_PORT"));
  options.timeout = std::chrono::seconds(30);
  const std::string task = variable("TROUPE_TEST_TASK");
  std::string answer;
  try {
    const auto group = make_gloo_collectives(options);
    if (task == "train") {
      const auto config = tiny_config(true);
      const auto weights = tiny_weights(config);
      Decoder decoder(config);
      FullyShardedDecoder model(decoder, *group, {});
      model.load([&](const std::string& name) { return weights.at(name); });
      model.zero_gradients();
      const auto batch = tiny_rows(documents_of(options.rank, options.size));
      forward_loss(model, batch).backward();
      model.finish_backward();
      const auto expected = tiny_reference(config, weights);
      require(relative_difference(model.gather_gradients(), expected.gradients) < 1e-6, "gradients differ");
      answer = "same gradients";
    } else {
      auto tensor = at::ones({100});
      for (int step = 0;; ++step) {
        if (step == 3 && options.rank == 1) ::raise(SIGKILL);
        group->all_reduce(tensor, concat("step ", step));
      }
    }
    group->barrier("end");
  } catch (const std::exception& error) {
    answer = error.what();
  }
  write_file_atomically(variable("TROUPE_TEST_ANSWER"), answer);
}

TEST_CASE("two processes train as one") {
  Folder folder;
  const int port = free_port();
  const auto first = start(folder.path, "train", 0, 2, port), second = start(folder.path, "train", 1, 2, port);
  CHECK(finish(first) == "same gradients");
  CHECK(finish(second) == "same gradients");
}

TEST_CASE("a killed process ends its peers long before the time limit, with the collective named") {
  Folder folder;
  const int port = free_port();
  const auto begin = Clock::now();
  std::vector<Child> children;
  for (int rank = 0; rank < 3; ++rank) children.push_back(start(folder.path, "die", rank, 3, port));
  for (const int rank : {0, 2}) {
    const auto answer = finish(children[static_cast<size_t>(rank)]);
    CHECK_MESSAGE(answer.find("all_reduce 'step 3'") != std::string::npos, answer);
    CHECK_MESSAGE(answer.find("rank 1") != std::string::npos, answer);
  }
  finish(children[1]);
  CHECK(Clock::now() - begin < std::chrono::seconds(20));
}
