// Critic and reference in processes of their own: they compute what they would in the run's, and what becomes of a run
// whose reference or critic is killed.
#include "tests/apps/program.h"

namespace troupe {
namespace {

using namespace actor_tests;

constexpr int kEndless = 100'000;  // steps of a run that the test interrupts

const char* const kPlaces =
    "[[topology.place]]\nrole = \"critic\"\nwhere = \"remote\"\n"
    "[[topology.place]]\nrole = \"reference\"\nwhere = \"remote\"\n";

/// PPO with a KL in the reward, one worker in the run; a sign of life each 0.2 s, lost after 2 s.
struct PpoRun : TinyRun {
  PpoRun(const std::string& name, int steps, const std::string& places) : TinyRun(name) {
    config = write_config(*this, concat("[training]\nsteps = ", steps,
                                        "\nmax_context_length = 64\n[cluster]\nheartbeat_s = 0.2\nlost_after_s = 2\n"
                                        "wait_for_workers_s = 50\n[checkpoint]\ninterval = 2\n",
                                        places));
  }
  std::vector<std::string> arguments(std::vector<std::string> more = {}) const {
    more.insert(more.begin(), {"rl", config, "--rollout.num_workers=1", "--algorithm.name=ppo",
                               "--algorithm.kl_coefficient=0.05", "--async_loop.target_offpolicy_steps=0"});
    return more;
  }
  std::vector<nlohmann::json> steps() const {
    std::vector<nlohmann::json> steps;
    for (const auto& line : read_json_lines(run_folder() / "metrics.jsonl"))
      if (line.contains("loss/mean")) steps.push_back(line);
    return steps;
  }
  std::string config;
};

std::vector<std::string> worker(const std::string& address, const std::string& role,
                                std::vector<std::string> more = {}) {
  more.insert(more.begin(), {"worker", "--join", address, "--role", role, "--threads", "1", "--heartbeat-s", "0.2",
                             "--retry-s", "30"});
  return more;
}

}  // namespace

TEST_CASE("a critic and a reference of other processes give the numbers of those of the run's own") {
  PpoRun near("near", 3, ""), far("far", 3, kPlaces);
  // In bf16 the order in which samples come in, another in each run, is worth a thousandth by itself.
  const std::vector<std::string> exact{"--training.mixed_precision_param=float32", "--rollout.dtype=float32"};
  Program alone(near.arguments(exact));
  REQUIRE_MESSAGE(alone.finish() == 0, alone.text);
  Program run(far.arguments(exact));
  const auto address = join_address(run);
  Program critic(worker(address, "critic")), reference(worker(address, "reference"));
  CHECK_MESSAGE(run.finish() == 0, run.text);
  CHECK_MESSAGE(critic.finish() == 0, critic.text);
  CHECK_MESSAGE(reference.finish() == 0, reference.text);
  const auto expected = near.steps(), steps = far.steps();
  REQUIRE(expected.size() == 3);
  REQUIRE(steps.size() == 3);
  const auto check_equal = [&](size_t step, const char* key) {
    const double wanted = expected[step].at(key), given = steps[step].at(key);
    CHECK_MESSAGE(std::abs(given - wanted) <= 1e-4 * std::abs(wanted) + 1e-9, std::string(key), " of step ", step + 1);
  };
  for (const char* key : {"critic/return_mean", "kl/mean"}) check_equal(0, key);
  // After the first step also what the critic elsewhere has learned.
  for (const size_t step : {0, 1, 2})
    for (const char* key : {"critic/loss", "grad_norm"}) check_equal(step, key);
  CHECK(std::filesystem::exists(far.run_folder() / "critic" / "model" / "config.json"));
  CHECK(open_checkpoint(far.run_folder() / "critic" / "model")->config().num_labels == 1);
}

TEST_CASE(
    "a reference is killed: another takes its work; the critic is killed: the run ends, and resumes with another") {
  PpoRun setting("judges", kEndless, kPlaces);
  std::string address;
  {
    Program run(setting.arguments());
    address = join_address(run);
    Program critic(worker(address, "critic"));
    REQUIRE_MESSAGE(run.wait_for_line("critic 1 joins: "), run.text);
    {
      Program first(worker(address, "reference"));
      REQUIRE_MESSAGE(run.wait_for_line("step 2/"), run.text);
      first.signal(SIGKILL);
      CHECK(run.wait_for_line("reference 2 is lost: "));
    }
    Program second(worker(address, "reference"));
    REQUIRE_MESSAGE(run.wait_for_line("reference 3 joins: "), run.text);
    REQUIRE_MESSAGE(run.wait_for_line("step 6/"), run.text);  // judged by the second
    REQUIRE_MESSAGE(run.wait_for_line("checkpoint written"), run.text);
    Program rival(worker(address, "critic"));
    CHECK(rival.finish() == 1);
    CHECK_MESSAGE(rival.text.find("the run has a critic already") != std::string::npos, rival.text);
    critic.signal(SIGKILL);
    CHECK(run.finish() == 1);
    CHECK_MESSAGE(run.text.find("the critic") != std::string::npos, run.text);
    CHECK(second.finish() == 0);
  }
  Program run(setting.arguments());
  CHECK(run.wait_for_line("resuming after step"));
  address = join_address(run);
  Program critic(worker(address, "critic")), reference(worker(address, "reference"));
  REQUIRE_MESSAGE(critic.wait_for_line("the critic goes on from "), critic.text);
  REQUIRE_MESSAGE(run.wait_for_line("step "), run.text);
  run.interrupt();
  CHECK_MESSAGE(run.finish() == 130, run.text);
  CHECK(critic.finish() == 0);
  CHECK(reference.finish() == 0);
  const auto fates = read_fates(setting.run_folder() / "journal.jsonl");
  for (const auto& [sample, fate] : fates) CHECK(fate == "trained");
}

TEST_CASE("judges with another model, and roles that the run has not placed, are refused by name") {
  PpoRun setting("strangers", 2, kPlaces);
  {
    Program run(setting.arguments({"--cluster.wait_for_workers_s=20"}));
    const auto address = join_address(run);
    Program stranger(worker(address, "critic", {"--run.seed=7"}));  // other random weights
    CHECK(stranger.finish() == 1);
    CHECK_MESSAGE(stranger.text.find("the critic's weights here are not those of the run") != std::string::npos,
                  stranger.text);
    Program reward(worker(address, "reward"));
    CHECK(reward.finish() == 1);
    CHECK_MESSAGE(reward.text.find("the run's reward is in its own process") != std::string::npos, reward.text);
    Program wrong(worker(address, "critic", {"--modell.path=x"}));
    CHECK(wrong.finish() == 2);
    CHECK(Program(worker(address, "rollout", {"--model.path=x"})).finish() == 2);
    CHECK(run.finish() == 1);
    CHECK_MESSAGE(run.text.find("no worker of --role critic is ready") != std::string::npos, run.text);
  }
  {
    Program run(setting.arguments());
    join_address(run);
    run.interrupt();  // while it waits for its critic
    CHECK(run.finish() == 130);
  }
  Program grpo({"rl", setting.config, "--algorithm.kl_coefficient=0.1"});  // has no critic to place
  CHECK(grpo.finish() == 2);
  CHECK_MESSAGE(grpo.text.find("has no critic to place") != std::string::npos, grpo.text);
}

}  // namespace troupe
