// A whole run with a multi-turn environment in a Python process that dies on the way.
#include "actors/engine_work.h"
#include "tests/actors/python_process.h"
#include "tests/actors/tiny_run.h"

namespace troupe::actor_tests {

TEST_CASE(
    "a run on a Python environment: every turn trained, the environment's tokens given, nothing lost by a death") {
  TinyRun run("environment");
  // The policy says a letter, is asked again, and is paid where it keeps to its word. The process dies once, in the
  // middle of its episodes.
  const auto script = write_script(run.folder.path / "environment.py", R"(
seen = 0
mark = os.path.join(os.path.dirname(os.path.abspath(__file__)), "died")

class Again(Environment):
    def reset(self, item):
        self.first = None
        self.answer = item["metadata"]["answer"]
    def step(self, text):
        global seen
        seen += 1
        if seen == 50 and not os.path.exists(mark):
            open(mark, "w").close()
            os._exit(7)
        if self.first is None:
            self.first = text
            return "?:", float(text[:1] == self.answer), False
        return "", float(text == self.first), True

serve_environment(Again)
)");
  run.topology.run.steps = 3;
  run.topology.async_loop.target_offpolicy_steps = 0;  // sampler and trainer have the same weights
  run.topology.environment.kind = "remote";
  run.topology.environment.remote.command = python_command(script);
  run.topology.environment.timeout_s = 20;
  run.topology.limits.max_attempts = 5;
  run.topology.sampling.max_new_tokens = 3;
  run.topology.sampling.stop = {".", ",", "a", "b", "c", "d", "e", "f", "g", "h"};
  run.topology.learner.algorithm.zero_variance = "keep";
  RewardOptions reward;
  reward.kind = reward.name = "environment";
  run.topology.rewards = {reward};
  REQUIRE(run.play() == 0);
  CHECK(std::filesystem::exists(run.folder.path / "died"));
  REQUIRE(run.listener.steps.size() == 3);
  for (const auto& step : run.listener.steps) {
    CHECK(step.at("train_batch/num_samples") == 64);
    CHECK(step.at("rollout/num_turns").get<double>() > 1);
    CHECK(step.at("rollout/answered_frac").get<double>() > 0.3);
    CHECK(step.contains("rollout/environment_reward"));
    CHECK(step.at("logprob_diff/max").get<double>() < 5e-5);  // trainer and sampler read the same tokens
  }
  // Lost episodes were made again, under the same ids.
  int num_trained = 0;
  for (const auto& [id, fate] : read_fates(run.run_folder() / "journal.jsonl")) num_trained += fate == "trained";
  CHECK(num_trained == 3 * 64);
  CHECK(run.listener.steps.back().at("rollout/num_failures").get<int64_t>() > 0);
}

TEST_CASE("a worker of another process is told environment and template") {
  WorkerSettings settings;
  settings.turns.environment.kind = "remote";
  settings.turns.environment.remote.address = "tcp://10.0.0.5:5555";
  settings.turns.environment.max_turns = 7;
  settings.turns.chat_template = "{{ messages }}";
  settings.turns.tokenizer_config = {{"eos_token", "</s>"}};
  const auto back = parse_worker_settings(to_json(settings));
  CHECK((back.turns.environment == settings.turns.environment));
  CHECK(back.turns.chat_template == settings.turns.chat_template);
  CHECK(back.turns.tokenizer_config == settings.turns.tokenizer_config);
}

}  // namespace troupe::actor_tests
