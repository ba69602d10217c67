// Whole runs whose rewards come from Python processes.
#include <csignal>

#include "actors/remote_service.h"
#include "base/file.h"
#include "tests/actors/python_process.h"
#include "tests/actors/tiny_run.h"

namespace troupe::actor_tests {
namespace {

RewardOptions remote(const std::string& name, const std::string& command, double weight = 1, double timeout_s = 20) {
  RewardOptions reward;
  reward.kind = "remote";
  reward.name = name;
  reward.weight = weight;
  reward.timeout_s = timeout_s;
  reward.settings = {{"command", command}};
  return reward;
}

}  // namespace

TEST_CASE("remote rewards stand beside rules, weighted; they see the prompt, the data's fields and the completion") {
  TinyRun run("remote-weighted");
  run.topology.run.steps = 3;
  const auto script = write_script(run.folder.path / "score.py", R"(
def score(item):
    metadata = item["metadata"]
    assert metadata["messages"][0]["content"][0] == metadata["answer"], metadata
    if metadata["answer"] == "b": raise ValueError("no b")
    return 1.0 if item["completion"] == metadata["answer"] else 0.0
serve(score)
)");
  run.topology.rewards.push_back(remote("python", python_command(script), 0.5));
  REQUIRE(run.play() == 0);
  REQUIRE(run.listener.steps.size() == 3);
  bool any_failure = false;
  for (const auto& step : run.listener.steps) {
    const auto exact = step.at("reward/exact/mean").get<double>(), total = step.at("reward/mean").get<double>();
    const auto failures = step.at("reward/num_failures").get<int64_t>();
    any_failure |= failures > 0;
    CHECK(failures % 8 == 0);  // whole groups have the answer "b"
    if (failures == 0) CHECK(total == doctest::Approx(1.5 * exact));
    if (failures == 0) CHECK(step.at("reward/python/mean").get<double>() == doctest::Approx(exact));
  }
  CHECK(any_failure);
}

TEST_CASE("a reward process that dies again and again loses no sample: each is trained, with its value") {
  TinyRun run("remote-dies");
  run.topology.run.steps = 3;
  const auto script = write_script(run.folder.path / "score.py", R"(
import threading
seen = 0
def score(item):
    global seen
    seen += 1
    if seen == 40: os._exit(9)      # in the middle of several answers
    return 0.25
serve(score)
)");
  run.topology.rewards = {remote("python", python_command(script))};
  REQUIRE(run.play() == 0);
  REQUIRE(run.listener.steps.size() == 3);
  for (const auto& step : run.listener.steps) {
    CHECK(step.at("reward/num_failures") == 0);
    CHECK(step.at("train_batch/num_samples") == 64);
    CHECK(step.at("reward/mean") == 0.25);
  }
  int num_trained = 0;
  for (const auto& [id, fate] : read_fates(run.run_folder() / "journal.jsonl")) num_trained += fate == "trained";
  CHECK(num_trained == 3 * 64);
}

TEST_CASE("a reward process that cannot live ends the run with counts, not in silence") {
  TinyRun run("remote-never");
  run.topology.rewards = {remote("python", "exit 5")};
  run.topology.learner.algorithm.zero_variance = "drop";
  CHECK(run.play() == 1);
  CHECK(run.listener.steps.empty());
  const auto text = read_file(run.run_folder() / "log.txt");
  CHECK(text.find("exit 5: ended 6 times, last with exit code 5") != std::string::npos);
  CHECK(text.find("no_reward") != std::string::npos);
}

}  // namespace troupe::actor_tests
