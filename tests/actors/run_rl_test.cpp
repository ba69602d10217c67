// RL end to end in this process on a million parameters: it learns, it overlaps, it repeats and resumes bit for bit.
#include "tests/actors/tiny_run.h"

namespace troupe {
namespace {

using namespace actor_tests;

double mean_of(const std::vector<nlohmann::json>& steps, const char* key, size_t begin, size_t end) {
  double sum = 0;
  for (size_t i = begin; i < end; ++i) sum += steps[i].at(key).get<double>();
  return sum / static_cast<double>(end - begin);
}

struct TraceSpan {
  std::string name;
  int64_t begin, end;
};

/// Spans of one role ("trainer", "rollout 0", ...) of trace.json, which must be what chrome://tracing reads.
std::map<std::string, std::vector<TraceSpan>> read_trace(const std::filesystem::path& path) {
  const auto trace = nlohmann::json::parse(read_file(path));
  std::map<int, std::string> roles;
  std::map<std::string, std::vector<TraceSpan>> spans;
  for (const auto& event : trace.at("traceEvents")) {
    const auto kind = event.at("ph").get<std::string>();
    CHECK(event.at("pid").is_number_integer());
    if (kind == "M") {
      CHECK(event.at("name") == "thread_name");
      roles[event.at("tid")] = event.at("args").at("name");
      continue;
    }
    REQUIRE(kind == "X");
    const auto begin = event.at("ts").get<int64_t>(), duration = event.at("dur").get<int64_t>();
    CHECK(begin >= 0);
    CHECK(duration >= 0);
    spans[roles.at(event.at("tid"))].push_back({event.at("name"), begin, begin + duration});
  }
  CHECK(trace.at("spans_left_out") == 0);
  return spans;
}

/// Engine steps that lie wholly inside of a train step.
int64_t num_decoded_while_training(const std::map<std::string, std::vector<TraceSpan>>& spans) {
  int64_t count = 0;
  for (const auto& train : spans.at("trainer")) {
    if (train.name.rfind("train step", 0) != 0) continue;
    for (const auto& [role, steps] : spans) {
      if (role.rfind("rollout", 0) != 0) continue;
      count += std::count_if(steps.begin(), steps.end(),
                             [&](const TraceSpan& step) { return step.begin >= train.begin && step.end <= train.end; });
    }
  }
  return count;
}

/// Completions of 40 tokens, so that generation takes about as long as training.
void make_long(TinyRun& run) {
  run.topology.sampling.max_new_tokens = 40;
  RewardOptions reward;
  reward.kind = reward.name = "regex";
  reward.settings = {{"pattern", "a"}};
  run.topology.rewards = {reward};
  run.topology.metrics.enable_trace = true;
  run.topology.checkpoint.enable = false;
  run.topology.checkpoint.last_save_in_hf = false;
}

}  // namespace

TEST_CASE("a million parameters learn a rule that depends on the prompt; the best weights are kept") {
  TinyRun run("learn");
  run.topology.run.steps = 90;
  run.topology.learner.schedule.total_steps = 90;
  run.topology.async_loop.num_samples_per_prompt = 16;
  run.topology.evaluation.enable = true;
  run.topology.evaluation.data = run.topology.data;
  run.topology.evaluation.data.paths = {(run.folder.path / "held_out.jsonl").string()};
  run.topology.evaluation.interval = 45;
  const auto stray_errors = num_stray_errors(), failed_questions = num_failed_questions();  // of this process
  REQUIRE(run.play() == 0);
  MESSAGE("90 steps in ", run.wall_s, " s");
  CHECK(run.processor_s < 2 * 60);  // a minute of two cores, whatever else the machine does
  const auto& steps = run.listener.steps;
  REQUIRE(steps.size() == 90);
  REQUIRE(run.listener.scores.size() == 3);
  MESSAGE("held-out score ", run.listener.scores[0], " -> ", run.listener.scores[1], " -> ", run.listener.scores[2]);
  CHECK(run.listener.scores[0] <= 0.25);                                   // one answer for all is an eighth
  CHECK(std::max(run.listener.scores[1], run.listener.scores[2]) >= 0.9);  // no two asynchronous runs are alike
  CHECK(run.listener.scores[2] >= 0.7);
  CHECK(mean_of(steps, "reward/mean", 0, 10) < 0.3);
  CHECK(mean_of(steps, "reward/mean", 80, 90) > 0.8);
  for (const auto& step : steps) {
    CHECK(step.at("train_batch/policy_age_max").get<int64_t>() <= 1);
    CHECK(step.at("messages/num_stray_errors") == stray_errors);
    CHECK(step.at("messages/num_failed_questions") == failed_questions);
    CHECK(step.at("timing/weight_sync/most_snapshots").get<int>() <= 2 + 1 + 1);  // readers (the evaluator too) + 1
  }
  // The exports are whole models; the best one has the best score's weights.
  const auto best = open_checkpoint(run.run_folder() / "best");
  CHECK(best->config().num_hidden_layers == 4);
  CHECK(best->tokenizer_json().find("<|end|>") != std::string::npos);
  const bool last_is_best = run.listener.scores[2] > run.listener.scores[1];
  CHECK((model_bytes(run.run_folder() / "best") == model_bytes(run.run_folder() / "model")) == last_is_best);
  for (const auto& [sample, fate] : read_fates(run.run_folder() / "journal.jsonl")) CHECK(fate == "trained");
}

TEST_CASE("a held-out prompt that is too long costs its own score, not that of the others") {
  TinyRun run("long_held_out");
  run.topology.run.steps = 1;
  run.topology.evaluation.enable = true;
  run.topology.evaluation.data = run.topology.data;
  run.topology.evaluation.data.paths = {(run.folder.path / "held_out.jsonl").string()};
  std::ofstream(run.folder.path / "held_out.jsonl", std::ios::app)
      << nlohmann::json{{"prompt", std::string(70, 'a')}, {"answer", "a"}}.dump() << "\n";
  REQUIRE(run.play() == 0);
  CHECK(run.listener.scores.size() == 2);
  const auto first = read_json_lines(run.run_folder() / "metrics.jsonl").at(0);
  CHECK(first.at("evaluation/num_prompts") == 13);
  CHECK(first.at("evaluation/num_failures") == 1);
}

TEST_CASE("a head with more rows than the tokenizer has tokens never draws an id without a token") {
  TinyRun run("padded_head");
  make_long(run);
  const auto path = run.folder.path / "model" / "config.json";
  auto config = nlohmann::json::parse(read_file(path));
  config["vocab_size"] = 64;  // of 16 tokens: random weights would draw three of four ids beyond them
  run.topology.async_loop.target_offpolicy_steps = 0;
  write_file_atomically(path, config.dump());
  run.topology.run.steps = 2;
  REQUIRE(run.play() == 0);
  size_t num_samples = 0;
  for (const auto& sample : read_json_lines(run.run_folder() / "rollout_samples.jsonl")) {
    if (sample.at("finish_reason") != "length") continue;
    ++num_samples;
    CHECK(sample.at("completion").get<std::string>().size() == sample.at("num_tokens").get<size_t>());  // a byte each
  }
  CHECK(num_samples > 0);
  for (const auto& step : run.listener.steps) CHECK(step.at("logprob_diff/max").get<double>() < 1e-4);
}

TEST_CASE("S=1 generates the next batch while it trains, S=0 does not; both wall times are printed") {
  double wall_s[2] = {};
  for (const int64_t lag : {0, 1}) {
    TinyRun run("overlap");
    make_long(run);
    run.topology.run.steps = 8;
    run.topology.async_loop.target_offpolicy_steps = lag;
    REQUIRE(run.play() == 0);
    wall_s[lag] = run.listener.steps.back().at("time_s");
    const auto spans = read_trace(run.run_folder() / "trace.json");
    CHECK(spans.contains("rollout 0"));
    CHECK(spans.contains("rollout 1"));
    CHECK(spans.contains("reward"));
    CHECK(std::count_if(spans.at("trainer").begin(), spans.at("trainer").end(),
                        [](const TraceSpan& span) { return span.name.rfind("train step", 0) == 0; }) == 8);
    const auto count = num_decoded_while_training(spans);
    MESSAGE("S=", lag, ": ", wall_s[lag], " s, ", count, " decode steps inside train steps");
    if (lag == 0) CHECK(count == 0);
    if (lag == 1) CHECK(count > 8);
    for (const auto& step : run.listener.steps) CHECK(step.at("train_batch/policy_age_max").get<int64_t>() <= lag);
  }
  MESSAGE("S=1 needs ", wall_s[1] / wall_s[0], " of the time of S=0");
}

TEST_CASE("run.deterministic repeats a run bit for bit, and resumes bit for bit") {
  const auto set = [](TinyRun& run) {
    run.topology.run.deterministic = true;
    run.topology.async_loop.target_offpolicy_steps = 0;
    run.topology.async_loop.num_prompts_per_train_step = 4;
    run.topology.sampling.max_new_tokens = 8;
    run.topology.rewards[0].kind = "regex";
    run.topology.rewards[0].settings = {{"pattern", "a"}};
    run.topology.checkpoint.interval = 2;
    run.topology.checkpoint.keep_latest_k = 0;
  };
  TinyRun first("first"), second("second"), resumed("resumed");
  for (auto* run : {&first, &second, &resumed}) set(*run);
  REQUIRE(first.play() == 0);
  REQUIRE(second.play() == 0);
  const auto weights = model_bytes(first.run_folder() / "model");
  CHECK((model_bytes(second.run_folder() / "model") == weights));
  CHECK((first.journal() == second.journal()));
  for (size_t i = 0; i < 6; ++i)
    for (const char* key : {"loss/mean", "grad_norm", "reward/mean", "entropy/mean", "logprob_diff/max"}) {
      const auto& one = first.listener.steps[i];  // a step of constant groups alone has no entropy
      const auto& other = second.listener.steps[i];
      REQUIRE(one.contains(key) == other.contains(key));
      if (one.contains(key)) CHECK(one.at(key) == other.at(key));
    }
  // From the checkpoint in the middle, with the records that a longer life left behind.
  std::filesystem::copy(first.run_folder(), resumed.run_folder(), std::filesystem::copy_options::recursive);
  for (const char* later : {"checkpoints/step-4", "checkpoints/step-6", "model"})
    std::filesystem::remove_all(resumed.run_folder() / later);
  REQUIRE(resumed.play() == 0);
  CHECK(resumed.listener.steps.size() == 4);
  CHECK((model_bytes(resumed.run_folder() / "model") == weights));
  CHECK((resumed.journal() == first.journal()));
  const auto fates = read_fates(resumed.run_folder() / "journal.jsonl");
  CHECK(fates.size() == 6 * 4 * 8);
}

TEST_CASE("two ranks train what one rank trains") {
  std::vector<std::vector<nlohmann::json>> steps;
  for (const int num_ranks : {1, 2}) {
    TinyRun run("ranks");
    run.topology.mesh.shard = num_ranks;
    run.topology.run.steps = 3;
    run.topology.run.deterministic = true;
    run.topology.async_loop.target_offpolicy_steps = 0;
    run.topology.learner.optimizer.lr = 1e-4;
    REQUIRE(run.play() == 0);
    CHECK(run.listener.description.at("num_ranks") == num_ranks);
    steps.push_back(run.listener.steps);
  }
  for (size_t i = 0; i < 3; ++i)
    for (const char* key : {"loss/mean", "grad_norm", "reward/mean"}) {
      CAPTURE(key);
      CHECK(steps[0][i].at(key).get<double>() == doctest::Approx(steps[1][i].at(key).get<double>()).epsilon(1e-4));
    }
}

TEST_CASE("groups without variance are dropped or refilled in a real run, and counted") {
  for (const char* mode : {"drop", "refill"}) {
    TinyRun run("variance");
    run.topology.learner.algorithm.zero_variance = mode;
    run.topology.run.steps = 3;
    run.topology.async_loop.num_samples_per_prompt = 4;
    run.topology.async_loop.max_refill_rounds = 20;
    REQUIRE(run.play() == 0);
    CAPTURE(mode);
    std::set<uint64_t> trained, dropped;
    for (const auto& line : run.journal()) {
      for (const auto& group : line.at("groups")) CHECK(trained.insert(group.get<uint64_t>()).second);
      for (const auto& group : line.at("dropped")) {
        CHECK(group.at("reason") == "zero_variance");
        CHECK(group.at("samples").size() == 4);
        CHECK(dropped.insert(group.at("group").get<uint64_t>()).second);
      }
    }
    CHECK(!dropped.empty());  // 16 tokens, 4 samples: most groups have no right answer yet
    const auto& last = run.listener.steps.back();
    if (mode == std::string("refill")) {
      CHECK(trained.size() == 3 * 8);
      CHECK(last.at("rollout_buffer/dropped/zero_variance").get<size_t>() >= dropped.size());
    } else {
      CHECK(trained.size() < 3 * 8);
    }
    read_fates(run.run_folder() / "journal.jsonl");  // each sample once
  }
}

}  // namespace troupe
