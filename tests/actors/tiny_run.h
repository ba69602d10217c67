// Real runs on a Llama of about a million parameters that starts from random weights, in seconds. The task depends on
// the prompt: two letters and a colon; the first letter is the answer. One letter for all prompts scores an eighth.
#pragma once

#include <ctime>
#include <fstream>

#include "actors/topology.h"
#include "base/cpu.h"
#include "models/formats/checkpoint_reader.h"
#include "tests/actors/support.h"

namespace troupe::actor_tests {

inline constexpr const char* kLetters = "abcdefgh";

/// config.json and a tokenizer.json of 16 tokens.
inline void write_tiny_model(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  const nlohmann::json config{{"architectures", {"LlamaForCausalLM"}},
                              {"model_type", "llama"},
                              {"vocab_size", 16},
                              {"hidden_size", 128},
                              {"intermediate_size", 512},
                              {"num_hidden_layers", 4},
                              {"num_attention_heads", 4},
                              {"num_key_value_heads", 2},
                              {"head_dim", 32},
                              {"max_position_embeddings", 256},
                              {"rms_norm_eps", 1e-5},
                              {"rope_theta", 10000.0},
                              {"hidden_act", "silu"},
                              {"tie_word_embeddings", true},
                              {"initializer_range", 0.02},
                              {"bos_token_id", 0},
                              {"eos_token_id", 0},
                              {"torch_dtype", "float32"}};
  std::ofstream(folder / "config.json") << config.dump(1);
  nlohmann::json vocabulary{{"<|end|>", 0}};
  for (const char c : std::string("abcdefgh:.,!?-+")) vocabulary[std::string(1, c)] = vocabulary.size();
  const nlohmann::json byte_level{
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  const nlohmann::json tokenizer{
      {"version", "1.0"},
      {"added_tokens",
       {{{"id", 0},
         {"content", "<|end|>"},
         {"single_word", false},
         {"lstrip", false},
         {"rstrip", false},
         {"normalized", false},
         {"special", true}}}},
      {"normalizer", nullptr},
      {"pre_tokenizer", byte_level},
      {"post_processor", nullptr},
      {"decoder", byte_level},
      {"model", {{"type", "BPE"}, {"unk_token", nullptr}, {"vocab", vocabulary}, {"merges", nlohmann::json::array()}}}};
  std::ofstream(folder / "tokenizer.json") << tokenizer.dump(1);
}

/// Every fifth pair of letters is held out.
inline void write_tiny_data(const std::filesystem::path& train, const std::filesystem::path& held_out) {
  std::ofstream seen(train), unseen(held_out);
  int number = 0;
  for (const char first : std::string(kLetters))
    for (const char second : std::string(kLetters))
      (number++ % 5 == 4 ? unseen : seen)
          << nlohmann::json{{"prompt", concat(first, second, ":")}, {"answer", std::string(1, first)}}.dump() << "\n";
}

/// Keeps what the run tells.
class Listener : public RunObserver {
 public:
  void on_start(const nlohmann::json& start) override { description = start; }
  void on_step(const nlohmann::json& metrics) override { steps.push_back(metrics); }
  void on_evaluation(const nlohmann::json& metrics) override { scores.push_back(metrics.at("evaluation/score")); }
  void on_text(std::string_view line) override { lines.emplace_back(line); }
  nlohmann::json description;
  std::vector<nlohmann::json> steps;
  std::vector<double> scores;
  std::vector<std::string> lines;
};

/// A run of the task above in a folder of its own; to be changed before `play`.
struct TinyRun {
  explicit TinyRun(const std::string& name) : folder(name) {
    write_tiny_model(folder.path / "model");
    write_tiny_data(folder.path / "train.jsonl", folder.path / "held_out.jsonl");
    topology.run.name = name;
    topology.run.folder = (folder.path / "run").string();
    topology.run.seed = 1;
    topology.run.steps = 6;
    topology.model = {(folder.path / "model").string(), true, ""};
    topology.data.paths = {(folder.path / "train.jsonl").string()};
    topology.data.seed = 1;
    topology.learner.optimizer.lr = 1e-3;
    topology.learner.optimizer.beta2 = 0.99;
    topology.learner.schedule.total_steps = 100;
    topology.learner.max_context_length = 64;
    topology.learner.num_tokens_per_microbatch = 2048;
    topology.learner.algorithm.zero_variance = "keep";
    topology.async_loop.num_prompts_per_train_step = 8;
    topology.async_loop.num_samples_per_prompt = 8;
    topology.rollout.num_workers = 2;
    topology.rollout.dtype = "float32";
    topology.rollout.engine.max_sequences = 64;
    topology.rollout.engine.max_context_length = 64;
    topology.sampling.max_new_tokens = 1;
    RewardOptions reward;
    reward.kind = reward.name = "exact";
    topology.rewards = {reward};
    topology.checkpoint.interval = 0;
    topology.limits.request_timeout_s = 60;
    topology.limits.shutdown_grace_s = 30;
    topology.threads = 2;
    topology.handle_signals = false;
    topology.observer = &listener;
  }
  int play() {
    const auto begin = std::chrono::steady_clock::now();
    const auto processor_begin = std::clock();  // of all threads
    const int code = run_rl(topology);
    processor_s = static_cast<double>(std::clock() - processor_begin) / CLOCKS_PER_SEC;
    wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return code;
  }
  std::filesystem::path run_folder() const { return topology.run.folder; }
  std::vector<nlohmann::json> journal() const { return read_json_lines(run_folder() / "journal.jsonl"); }

  TemporaryFolder folder;
  RlTopology topology;
  Listener listener;
  double wall_s = 0, processor_s = 0;
};

/// Every tensor of an exported model, as bytes of one string.
inline std::string model_bytes(const std::filesystem::path& folder) {
  const auto reader = open_checkpoint(folder);
  std::string bytes;
  for (const auto& [name, info] : reader->tensors()) {
    const auto tensor = reader->read(name, at::kFloat).contiguous();
    bytes += name;
    bytes.append(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
  }
  return bytes;
}

}  // namespace troupe::actor_tests
