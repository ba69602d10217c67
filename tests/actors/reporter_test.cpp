// status.json: what the reporter writes, that nothing it is told ends it, and the first and the last word of a run.
#include "actors/reporter.h"

#include <unistd.h>

#include <fstream>

#include "actors/reward_pool.h"
#include "tests/actors/virtual_run.h"

namespace troupe {
namespace {

using namespace actor_tests;

nlohmann::json read_status(const std::filesystem::path& path) { return nlohmann::json::parse(read_file(path)); }

/// Answers each question for its status with the next of these, the last one for ever.
run_control_actor spawn_control(caf::actor_system& system, std::vector<std::string> answers) {
  return system.spawn([answers](run_control_actor::pointer) -> run_control_actor::behavior_type {
    const auto next = std::make_shared<size_t>(0);
    return {
        [](atom::trained, const StepReport&) { return StepDecision{}; },
        [](atom::decide) { return StepDecision{}; },
        [](atom::validate, const std::string&) { return StepDecision{}; },
        [](atom::interrupt) {},
        [=](atom::status) {
          const auto answer = answers[*next];
          *next = std::min(*next + 1, answers.size() - 1);
          return answer;
        },
    };
  });
}

}  // namespace

TEST_CASE("the reporter goes on whatever it is told, and writes the run control's and the reward pool's words") {
  VirtualStage stage;
  const TemporaryFolder folder("reporter");
  const auto path = folder.path / "status.json";
  const auto control = stage.add(spawn_control(stage.system, {"no JSON", R"({"workers":[{}]})", R"({"workers":3})",
                                                              "\"\xff\"", "[]", R"({"step":7,"text":"ä"})"}));
  const auto reporter = stage.add(spawn_reporter(stage.system, control, {path, std::make_shared<Trace>(false)}));
  const auto buffer = stage.add(spawn_buffer(stage.system, {}));
  const auto pool = stage.add(spawn_reward_pool(stage.system, buffer, supervisor_actor(), {}));
  caf::anon_send(reporter, atom::arrive_v, caf::actor_cast<caf::strong_actor_ptr>(pool));
  REQUIRE(stage.run_until([&] { return std::filesystem::exists(path) && read_status(path).contains("control"); },
                          20 * kUnit));
  const auto status = read_status(path);
  CHECK(status.at("state") == "running");
  CHECK(status.at("process") == ::getpid());
  CHECK(status.at("control").at("step") == 7);
  CHECK(status.at("reward_pool") == nlohmann::json{{"graders", 0}, {"asked", 0}, {"waiting", 0}});
  // One that is gone does not answer: that is what is told.
  caf::anon_send_exit(control, caf::exit_reason::kill);
  caf::anon_send_exit(pool, caf::exit_reason::kill);
  stage.pass(3 * kUnit);
  const auto silent = read_status(path);
  CHECK(silent.at("control").at("text").get<std::string>().find("the run control does not answer") == 0);
  CHECK_FALSE(silent.contains("reward_pool"));
  // What stood in the way of the file is no reason to end either.
  std::filesystem::create_directories(folder.path / "status.json.new");
  stage.pass(3 * kUnit);
  std::filesystem::remove(folder.path / "status.json.new");
  std::filesystem::remove(path);
  stage.pass(3 * kUnit);
  CHECK(std::filesystem::exists(path));
}

TEST_CASE("a run that begins says so before anybody can tell more; the last word stays, whatever stood there") {
  const TemporaryFolder folder("status_words");
  const auto path = folder.path / "status.json";
  std::ofstream(path) << R"({"format":1,"state":"over: interrupted","control":{"step":9}})";
  open_status(path);
  CHECK(read_status(path).at("state") == "running");
  CHECK(read_status(path).at("process") == ::getpid());
  CHECK_FALSE(read_status(path).contains("control"));
  close_status(path, "over: done");
  CHECK(read_status(path).at("state") == "over: done");
  CHECK(read_status(path).at("process") == ::getpid());
  std::ofstream(path) << "half of a fi";
  close_status(path, "over: failed");
  CHECK(read_status(path).at("state") == "over: failed");
  std::filesystem::remove(path);
  std::filesystem::create_directories(path / "in the way");
  close_status(path, "over: failed");  // is only logged
  close_status("/nowhere/at/all/status.json", "over: failed");
  CHECK_THROWS_AS(open_status("/nowhere/at/all/status.json"), Error);
}

}  // namespace troupe
