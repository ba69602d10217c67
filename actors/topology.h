// What a run consists of, in plain structs, and the calls that play it. The configuration (apps/) fills them; no CAF
// here. A key of the configuration that is not a field below lives in the options of the room that owns it
// (LearnerOptions, EngineOptions, RewardOptions, ...).
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "rollout/engine.h"
#include "rollout/environment.h"
#include "rollout/reward.h"
#include "training/learner.h"
#include "training/preference_source.h"
#include "training/prompt_source.h"

namespace troupe {

/// run.*
struct RunOptions {
  std::string name = "run";
  std::string folder = "runs/run";
  uint64_t seed = 0;
  bool deterministic = false;   // needs target_offpolicy_steps = 0
  int64_t steps = 100;          // training.steps
  bool record_batches = false;  // RL: keeps every batch in <folder>/batches, for run_replay
  std::string resolved_config;  // text of config.toml as resolved; written to the run folder
  std::string loadable_config;  // the same to be read again, for roles in other processes
};

/// model.*
struct ModelOptions {
  std::string path;                // Hugging Face folder or GGUF file
  bool random_init = false;        // weights from seeded random numbers instead of the file
  std::string chat_template_path;  // data.chat_template; "" = the model's own
  bool is_reward_model = false;    // one score a sequence; a language model gets a fresh head
};

/// checkpoint.*
struct CheckpointOptions {
  bool enable = true;
  int64_t interval = 50;
  int64_t keep_latest_k = 3;    // 0: all
  bool is_async = true;         // written from a snapshot while training goes on
  std::string resume = "auto";  // "auto", "never" or a folder
  /// A run, its checkpoints or one of them, which a run without a checkpoint of its own starts from; "": model.path
  /// alone.
  std::string initial_load_path;
  bool initial_load_model_only = true;  // its weights, at step 0; false: as if it were resumed
  bool last_save_in_hf = true;          // writes <folder>/model at the end
  std::string export_dtype = "float32";
};

/// critic.*; read where the algorithm needs values.
struct CriticOptions {
  ModelOptions model;        // path empty: the policy's; a language model gets a fresh head
  double lr = 1e-5;          // the other optimizer settings are the policy's
  int64_t warmup_steps = 0;  // train steps at the start in which only the critic learns
};

/// async_loop.* and the filters of the buffer (algorithm.zero_variance is in LearnerOptions).
struct AsyncLoopOptions {
  int64_t target_offpolicy_steps = 1;  // S: admission bounds staleness by it
  int64_t window_groups = 1;           // W: 1 = strict admission order
  int64_t num_prompts_per_train_step = 8;
  int64_t num_samples_per_prompt = 8;
  int64_t max_refill_rounds = 4;  // algorithm.max_refill_rounds
};

/// rollout.*
struct RolloutOptions {
  int num_workers = 2;         // of this process; 0: all join from others
  EngineOptions engine;        // seed, deterministic, num_threads and max_context_length 0 are filled in by run_rl
  std::string dtype = "auto";  // of compute: "auto", "bfloat16", "float32"
  std::string group_to_worker = "least_loaded";  // "least_loaded" "sticky" "fixed"
  int num_threads = 0;                           // of each worker; 0: max(1, topology.threads / num_workers)
};

/// cluster.*: workers of other processes (`troupe worker --join`). Whoever speaks CAF reaches the port, so it belongs
/// on loopback or a private network; the token keeps other runs' workers out.
struct ClusterOptions {
  bool listen = false;
  std::string bind = "127.0.0.1";
  int port = 0, weights_port = 0;  // 0: any
  std::string token;               // "": none is asked for; needed where `bind` is not loopback
  double heartbeat_s = 1, lost_after_s = 10;
  double wait_for_workers_s = 600;     // without any worker, before the run stops
  std::set<std::string> remote_roles;  // [[topology.place]]: those of "reward", "reference", "critic" in workers
};
/// True for addresses that only this machine reaches.
bool is_loopback(const std::string& address);

/// evaluation.*
struct EvaluationOptions {
  bool enable = false;
  PromptSourceOptions data;
  int64_t num_prompts = 100;  // at most; fewer where the data set has fewer
  int64_t interval = 0;       // train steps; 0: at start and end only
  int64_t num_samples = 1;    // 1: greedy
  bool keep_best = true;      // exports the weights of the best score to <folder>/best
};

/// Time limits and the patience of supervision (cluster.request_timeout_s and defaults).
struct LimitOptions {
  double request_timeout_s = 600;  // any answer between roles; a worker without progress; a batch: 3 times that
  int num_restarts = 5;            // of one role within restart_window_s
  double restart_window_s = 300;
  double first_restart_pause_s = 0.1;  // doubles at each restart in the window
  int max_attempts = 3;                // of one sample, before it is given up (counted)
  double shutdown_grace_s = 10;
};

/// metrics.*
struct MetricsOptions {
  int64_t log_freq = 1;
  bool enable_trace = false;  // writes <folder>/trace.json (Chrome trace events)
};

/// What someone who looks on is told. Calls come from the run's threads, one at a time; they must return quickly.
class RunObserver {
 public:
  virtual ~RunObserver() = default;
  /// Once, before the first step: {"steps", "first_step", "folder", "parameters", "roles": {...}, "resumed_from"}.
  virtual void on_start(const nlohmann::json& description) {}
  /// Once a train step, with the same object as the line of metrics.jsonl.
  virtual void on_step(const nlohmann::json& metrics) {}
  /// After an evaluation: {"step", "evaluation/score", ...}; the same object is a line of metrics.jsonl.
  virtual void on_evaluation(const nlohmann::json& metrics) {}
  /// One completed sample worth showing: {"step", "prompt", "completion", "reward", ...}, as in rollout_samples.jsonl.
  virtual void on_sample(const nlohmann::json& sample) {}
  /// Once, when the run is over, whatever its exit code: every file of the run folder is complete.
  virtual void on_end() {}
  /// Other lines: what is being loaded, a checkpoint written, a restart. One line, no line feed.
  virtual void on_text(std::string_view line) {}
};

/// One RL run, with any number of rollout workers in other processes beside those of this one: director, rollout
/// workers, reward, buffer, trainer and its shards, supervisor.
struct RlTopology {
  RunOptions run;
  ModelOptions model;
  ModelOptions reference;  // read where the algorithm measures a KL; path empty: `model`
  CriticOptions critic;
  LearnerOptions learner;
  PromptSourceOptions data;
  AsyncLoopOptions async_loop;
  RolloutOptions rollout;
  SamplingOptions sampling;        // stop_token_ids empty: the model's end-of-sequence ids
  EnvironmentOptions environment;  // kind empty: samples are one turn
  std::vector<RewardOptions> rewards;
  EvaluationOptions evaluation;
  CheckpointOptions checkpoint;
  LimitOptions limits;
  MetricsOptions metrics;
  MeshDegrees mesh;            // of the trainer's ranks, threads of this process (parallelism.*)
  int threads = 0;             // topology.threads: one budget; 0: every core this process may use
  bool handle_signals = true;  // SIGINT and SIGTERM: checkpoint, exit code 130
  RunObserver* observer = nullptr;
  ClusterOptions cluster;
};

/// Text, chats or pairs for the trainer alone (training/text_source.h and preference_source.h read them).
struct TextDataOptions {
  std::string kind = "text";  // "text", "jsonl"; "chat" and "preference" follow from the objective
  std::vector<std::string> paths;
  std::string text_field = "text";
  ChatDocumentOptions chat;  // of chats, and the prompts of pairs
  std::string chosen_field = "chosen", rejected_field = "rejected", margin_field = "margin";
  bool skip_bad_lines = false;
  std::vector<std::string> validation_paths;  // empty: validation_fraction of the training text
  double validation_fraction = 0.05;
  uint64_t seed = 0;
  bool shuffle = true;
};

/// What the trainer alone learns from.
enum class TrainObjective {
  kText,        // pre-training
  kChat,        // supervised fine-tuning: the assistant's turns
  kPreference,  // pairs, by LearnerOptions::preference: a reward model, DPO or IPO
};

/// One run of the trainer alone: supervisor, trainer with its shards, data. No other actor.
struct PretrainTopology {
  TrainObjective objective = TrainObjective::kText;
  RunOptions run;
  ModelOptions model;
  ModelOptions reference;  // DPO and IPO; path empty: `model`
  LearnerOptions learner;
  TextDataOptions data;
  int64_t sequence_length = 512;  // training.max_context_length
  int64_t num_tokens_per_train_step = 4096;
  int64_t validation_interval = 0;        // train steps; 0: at start and end only
  int64_t num_validation_tokens = 65536;  // at most; 0: no validation
  int64_t num_pairs_per_train_step = 16;
  int64_t num_validation_pairs = 512;  // at most
  CheckpointOptions checkpoint;
  LimitOptions limits;
  MetricsOptions metrics;
  MeshDegrees mesh;  // as above
  int threads = 0;
  bool handle_signals = true;
  RunObserver* observer = nullptr;
};

/// Play the run to its end. Return the program's exit code: 0 done, 1 failed (the cause is logged), 130 interrupted
/// after a checkpoint. Throw UsageError on impossible combinations and Error where loading fails, before any actor is
/// started.
int run_rl(const RlTopology& topology);
int run_pretrain(const PretrainTopology& topology);

/// Trains the policy again, into topology.run.folder, on the batches that the run in `recorded` kept, up to
/// `until_step` (0: all). Same ranks and threads: the same weights, bit for bit.
int run_replay(const RlTopology& topology, const std::string& recorded, int64_t until_step);

/// What the run would hold in memory, in bytes by part, and its roles; for --dry-run. Opens models and data as the run
/// would, and throws as it would.
nlohmann::json describe(const RlTopology& topology);
nlohmann::json describe(const PretrainTopology& topology);

}  // namespace troupe
