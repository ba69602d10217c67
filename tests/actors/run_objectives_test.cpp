// Runs of the trainer alone on chats and pairs, and policy runs beside a reference or a greedy baseline, on a tiny
// model from random weights: they learn, resume bit for bit, and leave folders that load.
#include <fstream>

#include "actors/topology.h"
#include "base/file.h"
#include "models/formats/checkpoint_reader.h"
#include "tests/doctest.h"

namespace troupe {
namespace {

namespace fs = std::filesystem;

class Listener : public RunObserver {
 public:
  void on_step(const nlohmann::json& metrics) override { steps.push_back(metrics); }
  void on_evaluation(const nlohmann::json& metrics) override { validations.push_back(metrics); }
  void on_text(std::string_view line) override { lines.emplace_back(line); }
  std::vector<nlohmann::json> steps, validations;
  std::vector<std::string> lines;
};

/// A folder of its own with a model of some thousand parameters over bytes.
struct TinyFolder {
  explicit TinyFolder(const std::string& name) : path(fs::temp_directory_path() / ("troupe_" + name)) {
    fs::remove_all(path);
    fs::create_directories(path / "model");
    const fs::path source = TROUPE_SOURCE_DIR "/configs/models/shakespeare-llama";
    auto config = nlohmann::json::parse(read_file(source / "config.json"));
    config.update({{"hidden_size", 32},
                   {"intermediate_size", 64},
                   {"num_hidden_layers", 2},
                   {"head_dim", 8},
                   {"num_attention_heads", 4},
                   {"num_key_value_heads", 2}});
    std::ofstream(path / "model" / "config.json") << config.dump();
    fs::copy(source / "tokenizer.json", path / "model");
  }
  ~TinyFolder() { fs::remove_all(path); }
  std::string write(const std::string& name, const std::vector<nlohmann::json>& records) const {
    std::ofstream out(path / name);
    for (const auto& record : records) out << record.dump() << "\n";
    return (path / name).string();
  }
  fs::path path;
};

template <class Topology>
void set_common(Topology& topology, const TinyFolder& folder, Listener& listener, int64_t steps) {
  topology.run.folder = (folder.path / "run").string();
  topology.run.deterministic = true;
  topology.run.steps = steps;
  topology.model.path = (folder.path / "model").string();
  topology.model.random_init = true;
  topology.learner.optimizer.lr = 5e-3;
  topology.learner.schedule.total_steps = steps;
  topology.learner.max_context_length = 64;
  topology.learner.num_tokens_per_microbatch = 256;
  topology.checkpoint.interval = steps / 2;
  topology.checkpoint.keep_latest_k = 0;
  topology.threads = 1;
  topology.handle_signals = false;
  topology.observer = &listener;
}

PretrainTopology trainer_topology(const TinyFolder& folder, Listener& listener, int64_t steps) {
  PretrainTopology topology;
  set_common(topology, folder, listener, steps);
  topology.sequence_length = 64;
  topology.num_tokens_per_train_step = 256;
  topology.num_pairs_per_train_step = 8;
  topology.data.validation_fraction = 0.2;
  return topology;
}

std::vector<nlohmann::json> chats() {
  std::vector<nlohmann::json> records;
  for (int i = 0; i < 40; ++i)
    records.push_back({{"prompt", std::string(1, static_cast<char>('a' + i % 20)) + std::to_string(i)},
                       {"completion", i % 2 == 0 ? "yes" : "yes!"}});
  return records;
}

std::vector<nlohmann::json> pairs() {
  std::vector<nlohmann::json> records;
  for (int i = 0; i < 100; ++i)
    records.push_back({{"prompt", std::to_string(i) + ":"},
                       {"chosen", "good" + std::to_string(i)},
                       {"rejected", "evil" + std::to_string(i)}});
  records.push_back({{"prompt", "x"}, {"chosen", "same"}, {"rejected", "same"}});
  return records;
}

/// Plays, then plays the second half again from the middle checkpoint: the same losses to the last bit.
void check_run_and_resume(PretrainTopology topology, Listener& listener) {
  REQUIRE(run_pretrain(topology) == 0);
  const auto num_steps = static_cast<size_t>(topology.run.steps);
  REQUIRE(listener.steps.size() == num_steps);
  const auto first = listener.steps;
  fs::remove_all(fs::path(topology.run.folder) / "checkpoints" / ("step-" + std::to_string(num_steps)));
  REQUIRE(run_pretrain(topology) == 0);
  REQUIRE(listener.steps.size() == num_steps + num_steps / 2);
  for (size_t i = num_steps; i < listener.steps.size(); ++i) {
    CHECK(listener.steps[i].at("loss/mean") == first[i - num_steps / 2].at("loss/mean"));
    CHECK(listener.steps[i].at("grad_norm") == first[i - num_steps / 2].at("grad_norm"));
  }
}

}  // namespace

TEST_CASE("sft learns completions, validates and resumes bit for bit") {
  const TinyFolder folder("sft");
  Listener listener;
  auto topology = trainer_topology(folder, listener, 40);
  topology.objective = TrainObjective::kChat;
  topology.data.paths = {folder.write("chats.jsonl", chats())};
  check_run_and_resume(topology, listener);
  CHECK(listener.validations.back().at("validation/loss").get<double>() < 1.0);
  CHECK(listener.validations.front().at("validation/loss").get<double>() > 4.0);
}

TEST_CASE("a reward model learns, resumes, and its folder loads and is trained further") {
  const TinyFolder folder("reward_model");
  Listener listener;
  auto topology = trainer_topology(folder, listener, 20);
  topology.objective = TrainObjective::kPreference;
  topology.model.is_reward_model = true;
  topology.data.paths = {folder.write("pairs.jsonl", pairs())};
  check_run_and_resume(topology, listener);
  CHECK(listener.validations.back().at("validation/accuracy").get<double>() > 0.9);
  const auto model = fs::path(topology.run.folder) / "model";
  const auto reader = open_checkpoint(model);
  CHECK(reader->config().num_labels == 1);
  CHECK(reader->tensors().contains("score.weight"));
  CHECK_FALSE(reader->tensors().contains("lm_head.weight"));
  CHECK(load_weights(*reader, at::kFloat).at("score.weight").size(0) == 1);
  const auto config = nlohmann::json::parse(read_file(model / "config.json"));
  CHECK(config.at("architectures").at(0) == "LlamaForSequenceClassification");
  CHECK(config.at("pad_token_id") != config.at("eos_token_id"));

  Listener again;
  auto further = trainer_topology(folder, again, 2);
  further.objective = TrainObjective::kPreference;
  further.model = {model.string(), false, "", true};
  further.run.folder = (folder.path / "further").string();
  further.data.paths = topology.data.paths;
  REQUIRE(run_pretrain(further) == 0);
  CHECK(again.validations.front().at("validation/loss").get<double>() ==
        doctest::Approx(listener.validations.back().at("validation/loss").get<double>()).epsilon(1e-4));
}

TEST_CASE("dpo starts at its reference, learns, and resumes with the reference's log-probs of the start") {
  const TinyFolder folder("dpo");
  Listener listener;
  auto topology = trainer_topology(folder, listener, 20);
  topology.objective = TrainObjective::kPreference;
  topology.learner.preference.loss = "dpo";
  topology.data.paths = {folder.write("pairs.jsonl", pairs())};
  check_run_and_resume(topology, listener);
  CHECK(listener.steps.front().at("loss/mean").get<double>() == doctest::Approx(std::log(2.0)).epsilon(1e-4));
  // The reference was asked part by part, and once: the resumed run found its answers in the folder.
  const auto num_parts = std::count_if(listener.lines.begin(), listener.lines.end(), [](const std::string& line) {
    return line.rfind("log-probs of the reference: ", 0) == 0;
  });
  CHECK(num_parts == 1);
  CHECK(listener.validations.back().at("validation/accuracy").get<double>() > 0.9);
}

namespace {

nlohmann::json question(const std::string& prompt) { return nlohmann::json{{"prompt", prompt}, {"answer", "c"}}; }

RlTopology policy_topology(const TinyFolder& folder, Listener& listener, const std::string& algorithm) {
  RlTopology topology;
  set_common(topology, folder, listener, 4);
  topology.checkpoint.enable = false;
  topology.learner.algorithm = algorithm_preset(algorithm);
  topology.learner.algorithm.zero_variance = "keep";
  topology.data.paths = {folder.write("prompts.jsonl", {question("ab"), question("b"), question("cd")})};
  topology.async_loop = {0, 1, 2, 3, 1};
  topology.rollout.num_workers = 1;
  topology.rollout.dtype = "float32";
  topology.rollout.group_to_worker = "fixed";
  topology.rollout.engine.max_sequences = 8;
  topology.rollout.engine.max_context_length = 64;
  topology.sampling.max_new_tokens = 6;
  complete_algorithm(topology.learner.algorithm, 6);
  RewardOptions letter;  // a random answer of six bytes holds one about half of the time
  letter.kind = letter.name = "regex";
  letter.settings = nlohmann::json{{"pattern", "[a-z]"}};
  topology.rewards = {letter};
  return topology;
}

}  // namespace

TEST_CASE("a run measures its KL against the weights of the start, or against another folder") {
  const TinyFolder folder("kl");
  Listener same;
  auto topology = policy_topology(folder, same, "grpo");
  topology.learner.algorithm.kl_coefficient = 0.1;
  topology.reference = topology.model;
  REQUIRE(run_rl(topology) == 0);
  REQUIRE(same.steps.size() == 4);
  CHECK(std::abs(same.steps[0].at("kl/mean").get<double>()) < 1e-6);
  CHECK(same.steps[3].at("kl/mean").get<double>() > 1e-6);  // the policy has moved away

  Listener other;
  auto second = policy_topology(folder, other, "grpo");
  second.learner.algorithm.kl_coefficient = 0.1;
  second.run.folder = (folder.path / "second").string();
  second.reference.path = (fs::path(topology.run.folder) / "model").string();  // what the first run made
  REQUIRE(run_rl(second) == 0);
  CHECK(other.steps[0].at("kl/mean").get<double>() > 1e-6);
}

TEST_CASE("ppo trains a critic beside the policy, after a warm-up of the critic alone, and resumes both bit for bit") {
  const TinyFolder folder("ppo");
  Listener listener;
  auto topology = policy_topology(folder, listener, "ppo");
  topology.learner.algorithm.num_minibatches = 2;
  topology.learner.algorithm.kl_coefficient = 0.05;
  topology.critic.lr = 1e-3;
  topology.critic.warmup_steps = 1;
  topology.checkpoint.enable = true;
  topology.checkpoint.interval = 2;
  REQUIRE(run_rl(topology) == 0);
  REQUIRE(listener.steps.size() == 4);
  CHECK_FALSE(listener.steps[0].contains("grad_norm"));  // the critic alone
  for (size_t i = 1; i < 4; ++i) CHECK(listener.steps[i].at("grad_norm").get<double>() > 0);
  for (const auto& step : listener.steps) CHECK(step.at("critic/loss").get<double>() > 0);
  CHECK(open_checkpoint(fs::path(topology.run.folder) / "critic" / "model")->config().num_labels == 1);
  const auto first = listener.steps;
  for (const char* where : {"checkpoints", "critic/checkpoints"})
    fs::remove_all(fs::path(topology.run.folder) / where / "step-4");
  REQUIRE(run_rl(topology) == 0);
  REQUIRE(listener.steps.size() == 6);
  for (size_t i = 4; i < 6; ++i)
    for (const char* key : {"loss/mean", "critic/loss", "critic/explained_variance"})
      CHECK(listener.steps[i].at(key) == first[i - 2].at(key));

  // The critic's checkpoint is written before the policy's of that step is whole, so the one before stays as well.
  topology.run.folder = (folder.path / "keeps_one").string();
  topology.checkpoint.keep_latest_k = 1;
  REQUIRE(run_rl(topology) == 0);
  const auto has = [&](const char* where, const char* step) {
    return fs::exists(fs::path(topology.run.folder) / where / step);
  };
  CHECK(has("checkpoints", "step-4"));
  CHECK_FALSE(has("checkpoints", "step-2"));
  CHECK(has("critic/checkpoints", "step-4"));
  CHECK(has("critic/checkpoints", "step-2"));
}

TEST_CASE("remax makes one greedy sample a prompt and trains on the others") {
  const TinyFolder folder("remax");
  Listener listener;
  const auto topology = policy_topology(folder, listener, "remax");
  REQUIRE(run_rl(topology) == 0);
  for (const auto& step : listener.steps) {
    CHECK(step.contains("reward/baseline_mean"));
    CHECK(step.at("train_batch/num_samples") == 6);
  }
  // One prompt's greedy sample is the same in every batch of one version; the journal marks it.
  const auto journal = read_file(fs::path(topology.run.folder) / "journal.jsonl");
  CHECK(journal.find("\"baseline\":true") != std::string::npos);
}

}  // namespace troupe
