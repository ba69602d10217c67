// Whole runs of a model of about 1 M parameters, from the text of their configuration, in this process.
#pragma once

#include <unistd.h>

#include <filesystem>

#include "apps/build_topology.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "tests/doctest.h"

namespace troupe::run_testing {

namespace fs = std::filesystem;

/// A folder with a model's description (weights are random) and text to learn; runs go beside them.
struct Workshop {
  fs::path path = fs::temp_directory_path() / concat("troupe-runs-", ::getpid());

  Workshop() {
    log::set_console_sink([](std::string_view) {});  // told by the watch, and in log.txt
    fs::remove_all(path);
    fs::create_directories(path / "model");
    const fs::path source = fs::path(TROUPE_SOURCE_DIR) / "configs/models/shakespeare-llama";
    fs::copy_file(source / "tokenizer.json", path / "model/tokenizer.json");
    write_file_atomically(path / "model/config.json", R"({
      "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 257, "hidden_size": 128,
      "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
      "head_dim": 32, "max_position_embeddings": 256, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
      "hidden_act": "silu", "tie_word_embeddings": true, "initializer_range": 0.05,
      "bos_token_id": 0, "eos_token_id": 0, "torch_dtype": "float32"})");
    std::string text;
    for (int line = 0; line < 600; ++line)
      text += concat("line ", line, " of the play: what is ", line % 7, " to ", (line * line) % 11, "?\n\n");
    write_file_atomically(path / "text.txt", text);
  }
  ~Workshop() {
    log::close_files();
    log::set_console_sink(nullptr);
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }

  std::string common(const std::string& run) const {
    return concat("[run]\nname = \"", run, "\"\nfolder = \"", (path / run).string(),
                  "\"\ndeterministic = true\nseed = 3\n[model]\npath = \"", (path / "model").string(),
                  "\"\nrandom_init = true\n");
  }
  std::string pretrain(const std::string& run) const {
    return common(run) + concat("[data]\nkind = \"text\"\npaths = [\"", (path / "text.txt").string(), R"("]
[training]
steps = 6
max_context_length = 32
num_tokens_per_microbatch_per_dp_rank = 64
num_tokens_per_train_step = 256
mixed_precision_param = "float32"
[optimizer]
lr = 1e-3
weight_decay = 0.1
[lr_scheduler]
warmup_steps = 2
total_steps = 6
decay_ratio = 0.5
[checkpoint]
interval = 2
[metrics]
console = "quiet"
)");
  }
  std::string rl(const std::string& run) const {
    return common(run) + R"([data]
kind = "arithmetic"
[training]
steps = 3
max_context_length = 96
num_tokens_per_microbatch_per_dp_rank = 256
mixed_precision_param = "float32"
[optimizer]
lr = 1e-3
[async_loop]
num_prompts_per_train_step = 3
num_samples_per_prompt = 6
target_offpolicy_steps = 0
[rollout]
num_workers = 1
dtype = "float32"
[sampling]
max_new_tokens = 10
[algorithm]
zero_variance = "keep"
[evaluation]
num_prompts = 0
[metrics]
console = "quiet"
[[reward]]
kind = "regex"
pattern = "[0-9]"
)";
  }
};

/// What a run told while it went.
struct Watch : RunObserver {
  std::vector<nlohmann::json> steps, evaluations;
  std::vector<std::string> lines;
  nlohmann::json start;
  void on_start(const nlohmann::json& description) override { start = description; }
  void on_step(const nlohmann::json& metrics) override { steps.push_back(metrics); }
  void on_evaluation(const nlohmann::json& metrics) override { evaluations.push_back(metrics); }
  void on_text(std::string_view line) override { lines.emplace_back(line); }
  std::vector<double> curve(const std::string& name) const {
    std::vector<double> values;
    for (const auto& step : steps) values.push_back(step.at(name));
    return values;
  }
};

inline int play_pretrain(const std::string& toml, Watch& watch, const std::vector<std::string>& overrides = {}) {
  auto topology = apps::build_pretrain_topology(apps::Config::from_text(toml, "test.toml", overrides));
  topology.observer = &watch;
  topology.handle_signals = false;
  topology.num_validation_tokens = 256;
  return run_pretrain(topology);
}

inline int play_rl(const std::string& toml, Watch& watch, const std::vector<std::string>& overrides = {}) {
  auto topology = apps::build_rl_topology(apps::Config::from_text(toml, "test.toml", overrides));
  topology.observer = &watch;
  topology.handle_signals = false;
  return run_rl(topology);
}

inline std::string degree(int ranks) { return concat("--parallelism.data_parallel_shard_degree=", ranks); }

inline double largest_relative_difference(const std::vector<double>& got, const std::vector<double>& expected) {
  REQUIRE(got.size() == expected.size());
  double largest = 0;
  for (size_t i = 0; i < got.size(); ++i)
    largest = std::max(largest, std::abs(got[i] - expected[i]) / std::max(1e-3, std::abs(expected[i])));
  return largest;
}

}  // namespace troupe::run_testing
