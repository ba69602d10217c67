// Several jobs as one: what a stage's configuration is made of, what is done before, and what goes on after Ctrl-C.
#include "apps/report.h"
#include "tests/apps/program.h"
#include "tests/apps/runs.h"

namespace troupe::run_testing {
namespace {

using actor_tests::Program;
using actor_tests::read_json_lines;

constexpr const char* kThree = R"(
[pipeline]
name = "three"
[training]
steps = 7
[[stage]]
name = "first"
command = "sft"
[stage.model]
path = "start"
[stage.training]
steps = 3
[[stage]]
name = "judge"
command = "reward-model"
[stage.model]
path = "{first}/model"
[[stage]]
name = "last"
command = "rl"
[stage.model]
path = "{first}/model"
[stage.data]
paths = ["{judge}/prompts", "plain"]
template = "{a} of {b}"
[[stage.reward]]
kind = "model"
path = "{judge}/model"
)";

apps::JobPipeline load(const std::string& text, const std::vector<std::string>& overrides = {}) {
  const auto path = fs::temp_directory_path() / concat("troupe-pipeline-", ::getpid(), ".toml");
  write_file_atomically(path, text);
  auto remove = std::shared_ptr<void>(nullptr, [&](void*) { fs::remove(path); });
  return apps::load_pipeline(path.string(), overrides);
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  text.replace(text.find(from), from.size(), to);
  return text;
}

/// Fine-tuning, a reward model and PPO of a million parameters, in seconds.
std::string write_pipeline(const Workshop& shop) {
  std::string chats, pairs, prompts;
  for (int i = 0; i < 40; ++i) {
    const auto letter = static_cast<char>('a' + i % 20);
    chats += nlohmann::json{{"prompt", concat("say ", letter)}, {"completion", std::string(3, letter)}}.dump() + "\n";
    pairs += nlohmann::json{{"prompt", concat("say ", letter)},
                            {"chosen", concat(letter, letter, letter)},
                            {"rejected", concat(letter, "x", letter)}}
                 .dump() +
             "\n";
    prompts += nlohmann::json{{"prompt", concat("say ", letter)}, {"answer", std::string(1, letter)}}.dump() + "\n";
  }
  write_file_atomically(shop.path / "chats.jsonl", chats);
  write_file_atomically(shop.path / "pairs.jsonl", pairs);
  write_file_atomically(shop.path / "prompts.jsonl", prompts);
  const auto folder = shop.path.string();
  const auto path = shop.path / "pipeline.toml";
  write_file_atomically(path, concat(R"(
[pipeline]
name = "tiny"
folder = ")",
                                     folder, R"(/pipeline"
[training]
max_context_length = 64
num_tokens_per_microbatch_per_dp_rank = 256
[optimizer]
lr = 1e-3
[checkpoint]
interval = 2
[metrics]
console = "plain"
[[stage]]
name = "sft"
command = "sft"
[stage.model]
path = ")",
                                     folder, R"(/model"
random_init = true
[stage.data]
kind = "chat"
paths = [")",
                                     folder, R"(/chats.jsonl"]
validation = ")",
                                     folder, R"(/chats.jsonl"
[stage.training]
steps = 6
[[stage]]
name = "judge"
command = "reward-model"
[stage.model]
path = "{sft}/model"
[stage.data]
kind = "preference"
paths = [")",
                                     folder, R"(/pairs.jsonl"]
validation = ")",
                                     folder, R"(/pairs.jsonl"
[stage.preference]
num_pairs_per_train_step = 8
[stage.training]
steps = 8
[[stage]]
name = "ppo"
command = "rl"
[stage.model]
path = "{sft}/model"
[stage.critic]
path = "{judge}/model"
[stage.data]
kind = "jsonl"
paths = [")",
                                     folder, R"(/prompts.jsonl"]
[stage.training]
steps = 5
[stage.async_loop]
num_prompts_per_train_step = 4
num_samples_per_prompt = 2
[stage.rollout]
num_workers = 1
[stage.sampling]
max_new_tokens = 6
[stage.algorithm]
name = "ppo"
kl_coefficient = 0.05
[[stage.reward]]
kind = "model"
path = "{judge}/model"
[[stage.reward]]
kind = "regex"
name = "watched"
weight = 0
pattern = "[a-z]"
)"));
  return path.string();
}

std::vector<int64_t> steps_of(const fs::path& run) {
  std::vector<int64_t> steps;
  for (const auto& line : read_json_lines(run / "metrics.jsonl"))
    if (line.contains("loss/mean")) steps.push_back(line.at("step"));
  return steps;
}

}  // namespace

TEST_CASE("a stage is what stands outside of the stages, then its own, then the overrides for all and for it") {
  const auto pipeline = load(kThree, {"--optimizer.lr=0.5", "--last.optimizer.lr=0.25", "--pipeline.folder=/tmp/x"});
  REQUIRE(pipeline.stages.size() == 3);
  const auto& [first, judge, last] = std::tie(pipeline.stages[0], pipeline.stages[1], pipeline.stages[2]);
  CHECK(first.command == "sft");
  CHECK(first.config.integer("training.steps") == 3);
  CHECK(judge.config.integer("training.steps") == 7);
  CHECK(first.config.number("optimizer.lr") == 0.5);
  CHECK(last.config.number("optimizer.lr") == 0.25);
  CHECK(first.config.string("run.folder") == "/tmp/x/first");
  CHECK(judge.config.string("model.path") == "/tmp/x/first/model");
  CHECK(judge.needs == std::vector<std::string>{"first"});
  CHECK(last.config.strings("data.paths") == std::vector<std::string>{"/tmp/x/judge/prompts", "plain"});
  CHECK(last.config.string("data.template") == "{a} of {b}");
  CHECK(last.config.rewards().at(0).at("path") == "/tmp/x/judge/model");
  CHECK(first.config.rewards().empty());
  CHECK(load(kThree).folder == "runs/three");
}

TEST_CASE("a pipeline that cannot be meant so is refused with its place") {
  CHECK_THROWS_WITH_AS(load("[training]\nsteps = 1\n"), doctest::Contains("there is none"), UsageError);
  CHECK_THROWS_WITH_AS(load(replaced(kThree, "name = \"judge\"", "name = \"first\"")),
                       doctest::Contains("two stages are called first"), UsageError);
  CHECK_THROWS_WITH_AS(load(replaced(kThree, "name = \"judge\"", "name = \"training\"")),
                       doctest::Contains("cannot be called"), UsageError);
  CHECK_THROWS_WITH_AS(load(replaced(kThree, "path = \"start\"", "path = \"{last}/model\"")),
                       doctest::Contains("{last} is not earlier than stage first"), UsageError);
  CHECK_THROWS_WITH_AS(load(replaced(kThree, "command = \"sft\"", "comand = \"sft\"")),
                       doctest::Contains("needs a command"), UsageError);
  CHECK_THROWS_WITH_AS(load(replaced(kThree, "steps = 3", "stepz = 3")), doctest::Contains("training.steps"),
                       UsageError);
  CHECK_THROWS_WITH_AS(load(kThree, {"--lst.optimizer.lr=1"}), doctest::Contains("unknown key"), UsageError);
}

TEST_CASE("fine-tuning, a reward model and PPO run as one job, stop at Ctrl-C and go on, each stage once") {
  const Workshop shop;
  const auto toml = write_pipeline(shop);
  const auto folder = shop.path / "pipeline";
  {
    Program program({"pipeline", toml, "--ppo.training.steps=100000"});
    REQUIRE_MESSAGE(program.wait_for_line("stage 3 of 3"), program.text);
    REQUIRE(program.wait_for_line("step 3"));
    program.interrupt();
    CHECK(program.finish() == 130);
  }
  CHECK(steps_of(folder / "sft") == std::vector<int64_t>{1, 2, 3, 4, 5, 6});
  CHECK(steps_of(folder / "judge") == std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8});
  const auto done = static_cast<int64_t>(steps_of(folder / "ppo").size());
  REQUIRE(done >= 3);
  const auto wanted = done + 2;
  const auto go_on = concat("--ppo.training.steps=", wanted);
  Program program({"pipeline", toml, go_on});
  CHECK_MESSAGE(program.finish() == 0, program.text);
  CHECK(program.text.find("sft (sft): done before") != std::string::npos);
  CHECK(program.text.find("judge (reward-model): done before") != std::string::npos);
  CHECK(program.text.find(concat("resuming after step ", done)) != std::string::npos);
  std::vector<int64_t> each_once;
  for (int64_t step = 1; step <= wanted; ++step) each_once.push_back(step);
  CHECK(steps_of(folder / "ppo") == each_once);
  const auto last = read_json_lines(folder / "ppo/metrics.jsonl").back();
  CHECK(last.contains("critic/loss"));
  CHECK(last.contains("kl/mean"));
  CHECK(last.at("reward/model/mean").get<double>() ==
        doctest::Approx(last.at("train_batch/reward/mean").get<double>()));
  CHECK(last.contains("reward/watched/mean"));

  const auto page = read_file(folder / "report.html");
  for (const char* part : {"\"sft\"", "\"judge\"", "\"ppo\"", "validation/accuracy", "reward/watched/mean"})
    CHECK_MESSAGE(page.find(part) != std::string::npos, part);

  Program again({"pipeline", toml, go_on});
  CHECK(again.finish() == 0);
  CHECK(again.text.find("ppo (rl): done before") != std::string::npos);
  Program other({"pipeline", toml, "--sft.training.steps=7"});
  CHECK(other.finish() == 2);
  CHECK(other.text.find("stage sft was done with another configuration") != std::string::npos);
}

}  // namespace troupe::run_testing
