// Ctrl-C as the user has it: SIGINT to the real binary, exit codes, the checkpoint, and the resume.
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>

#include "tests/actors/tiny_run.h"

extern char** environ;

namespace troupe {
namespace {

using namespace actor_tests;

/// `troupe` as a child process whose lines are read one by one; killed where it says nothing for a minute.
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
    for (std::string line; read_line(line);)
      if (line.find(part) != std::string::npos) return true;
    return false;
  }
  void interrupt() const { REQUIRE(::kill(process_, SIGINT) == 0); }
  /// Reads the rest; the exit code, or -1 where it was killed.
  int finish() {
    for (std::string line; read_line(line);) continue;
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

std::string write_config(const TinyRun& run, const std::string& more) {
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

}  // namespace

TEST_CASE(
    "Ctrl-C writes a checkpoint and exits 130; the resume goes on with the next step, no sample lost or doubled") {
  TinyRun run("interrupt");
  const auto config = write_config(run, "[training]\nsteps = 8\nmax_context_length = 64\n[optimizer]\nlr = 1e-3\n");
  {
    Program program({"rl", config});
    REQUIRE(program.wait_for_line("step 3/8"));
    program.interrupt();
    CHECK(program.finish() == 130);
    INFO(program.text);
    CHECK(program.text.find("interrupted: finishing the step") != std::string::npos);
  }
  const auto before = run.journal();
  REQUIRE(before.size() >= 3);
  const auto last_step = before.back().at("step").get<int64_t>();
  CHECK(last_step < 8);
  CHECK(std::filesystem::exists(run.run_folder() / concat("checkpoints/step-", last_step) / "manifest.json"));
  {
    Program program({"rl", config});
    CHECK(program.finish() == 0);
    INFO(program.text);
    CHECK(program.text.find(concat("resuming after step ", last_step)) != std::string::npos);
  }
  const auto journal = run.journal();
  REQUIRE(journal.size() == 8);
  for (size_t i = 0; i < 8; ++i) {
    CHECK(journal[i].at("step") == i + 1);
    CHECK(journal[i].at("groups").size() == 8);
    if (i < before.size()) CHECK((journal[i] == before[i]));
    for (size_t place = 0; place < 8; ++place) CHECK(journal[i].at("groups")[place] == i * 8 + place);
  }
  const auto fates = read_fates(run.run_folder() / "journal.jsonl");
  CHECK(fates.size() == 8 * 8 * 8);
  for (const auto& [sample, fate] : fates) CHECK(fate == "trained");
  CHECK(std::filesystem::exists(run.run_folder() / "model" / "model.safetensors"));
}

TEST_CASE("a second Ctrl-C ends the program at once, and leaves the older checkpoint as it is") {
  TinyRun run("interrupt_twice");
  // Sixteen epochs make a train step much longer than the making of its batch: the second signal comes while the step
  // that the first one lets end is still under way.
  const auto config = write_config(run, "[training]\nsteps = 8\nmax_context_length = 64\n[checkpoint]\ninterval = 1\n");
  auto text = read_file(config);
  const std::string algorithm = "[algorithm]\n", samples = "num_samples_per_prompt = 8";
  text.insert(text.find(algorithm) + algorithm.size(), "num_epochs = 16\n");
  text.replace(text.find(samples), samples.size(), "num_samples_per_prompt = 16");
  std::ofstream(config) << text;
  Program program({"rl", config});
  REQUIRE(program.wait_for_line("step 2/8"));  // a whole step after the save of step 1
  program.interrupt();
  REQUIRE(program.wait_for_line("interrupted: finishing the step"));
  program.interrupt();
  CHECK(program.finish() == 130);
  INFO(program.text);
  CHECK(program.text.find("second signal: ending at once") != std::string::npos);
  CHECK(std::filesystem::exists(run.run_folder() / "checkpoints/step-1/manifest.json"));
}

TEST_CASE("Ctrl-C before the first step is done has nothing to save and exits 130 all the same") {
  TinyRun run("interrupt_early");
  const auto config = write_config(run, "[training]\nsteps = 1000\nmax_context_length = 64\n");
  Program program({"rl", config});
  REQUIRE(program.wait_for_line("run "));
  program.interrupt();
  CHECK(program.finish() == 130);
}

}  // namespace troupe
