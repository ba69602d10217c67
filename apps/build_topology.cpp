#include "apps/build_topology.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <sstream>

#include "apps/algorithm_keys.h"
#include "apps/places.h"
#include "apps/token_file.h"
#include "base/cpu.h"
#include "base/error.h"
#include "base/text.h"

namespace troupe::apps {
namespace {

[[noreturn]] void refuse(const Config& config, const std::string& name, const std::string& why) {
  const auto& entry = config.value(name);
  throw UsageError(concat(entry.origin, ": ", name, " = ", entry.value.dump(), ": ", why));
}

RunOptions run_options(const Config& config) {
  RunOptions run;
  run.name = config.string("run.name");
  if (run.name.empty() || run.name.find('/') != std::string::npos) refuse(config, "run.name", "takes a word without /");
  run.folder = config.string("run.folder").empty() ? "runs/" + run.name : config.string("run.folder");
  run.seed = static_cast<uint64_t>(config.integer("run.seed"));
  run.deterministic = config.boolean("run.deterministic");
  run.steps = config.integer("training.steps");
  run.record_batches = config.boolean("run.record_batches");
  run.resolved_config = config.print(true);
  run.loadable_config = config.print_given();
  return run;
}

ModelOptions model_options(const Config& config, bool with_template = true) {
  ModelOptions model;
  model.path = config.string("model.path");
  if (model.path.empty()) refuse(config, "model.path", "is needed: a Hugging Face folder or a GGUF file");
  if (!std::filesystem::exists(model.path)) refuse(config, "model.path", "there is no such file or folder");
  model.random_init = config.boolean("model.random_init");
  model.chat_template_path = with_template ? config.string("data.chat_template") : "";
  if (!model.chat_template_path.empty() && !std::filesystem::is_regular_file(model.chat_template_path))
    refuse(config, "data.chat_template", "there is no such file");
  return model;
}

/// What the algorithm asks of the batch and of the models beside the policy.
void check_algorithm_setting(const Config& config, const AlgorithmOptions& algorithm) {
  const auto num_groups = config.integer("async_loop.num_prompts_per_train_step");
  const auto num_samples = config.integer("async_loop.num_samples_per_prompt");
  if (algorithm.num_minibatches > num_groups) {
    refuse(config, "algorithm.num_minibatches",
           concat("a batch of ", num_groups, " groups (async_loop.num_prompts_per_train_step) has fewer"));
  }
  if (num_samples < 2 && needs_groups(algorithm)) {
    refuse(config, "async_loop.num_samples_per_prompt",
           concat("algorithm.advantage = \"", algorithm.advantage,
                  "\" compares the samples of a prompt: needs at least 2"));  // B149
  }
  if (num_samples < 2 && algorithm.zero_variance != "keep") {
    refuse(config, "async_loop.num_samples_per_prompt",
           concat("one reward never differs, so algorithm.zero_variance = \"", algorithm.zero_variance,
                  "\" would leave out every group: needs at least 2, or \"keep\""));
  }
  const auto max_new_tokens = config.integer("sampling.max_new_tokens");
  if (algorithm.overlong == "penalty" && algorithm.overlong_max_tokens - algorithm.overlong_buffer >= max_new_tokens) {
    refuse(config, "algorithm.overlong_max_tokens",
           concat("the punishment begins at ", algorithm.overlong_max_tokens - algorithm.overlong_buffer,
                  " tokens, which sampling.max_new_tokens = ", max_new_tokens, " never passes"));
  }
}

/// The model at the path under `key`, which must exist; `model` where there is none.
ModelOptions other_model(const Config& config, const char* key, ModelOptions model) {
  const auto path = config.string(key);
  if (path.empty()) return model;
  if (!std::filesystem::exists(path)) refuse(config, key, "there is no such file or folder");
  model.path = path;
  model.random_init = false;
  return model;
}

ModelOptions reference_options(const Config& config, const ModelOptions& model, const AlgorithmOptions& algorithm) {
  if (!config.string("reference.path").empty() && !needs_reference(algorithm))
    refuse(config, "reference.path", "algorithm.kl_coefficient = 0 asks for none");
  return other_model(config, "reference.path", model);
}

CriticOptions critic_options(const Config& config, const ModelOptions& model, const AlgorithmOptions& algorithm) {
  CriticOptions critic;
  critic.lr = config.number("critic.lr");
  critic.warmup_steps = config.integer("critic.warmup_steps");
  for (const char* name : {"critic.path", "critic.lr", "critic.warmup_steps"}) {
    if (!config.is_default(name) && !needs_critic(algorithm))
      refuse(config, name, concat("algorithm.advantage = \"", algorithm.advantage, "\" has no critic"));
  }
  critic.model = other_model(config, "critic.path", model);
  return critic;
}

PipelineOptions pipeline_options(const Config& config) {
  PipelineOptions pipeline;
  pipeline.schedule = config.string("parallelism.pipeline_parallel_schedule");
  pipeline.stages_per_rank = static_cast<int>(config.integer("parallelism.pipeline_parallel_stages_per_rank"));
  const char* key = "parallelism.pipeline_parallel_layers_per_stage";
  std::istringstream numbers(config.string(key));
  for (std::string number; std::getline(numbers, number, ',');) {
    const auto digits = trim(number);
    if (digits.empty() || digits.size() > 6 || digits.find_first_not_of("0123456789") != std::string::npos)
      refuse(config, key, "takes numbers with commas between them");
    pipeline.num_layers_by_stage.push_back(std::stoll(std::string(digits)));
  }
  return pipeline;
}

/// `num_updates`: optimizer steps of one train step, for the length of the schedule.
LearnerOptions learner_options(const Config& config, int64_t num_updates) {
  LearnerOptions learner;
  learner.optimizer.name = config.string("optimizer.name");
  learner.optimizer.lr = config.number("optimizer.lr");
  learner.optimizer.beta1 = config.number("optimizer.beta1");
  learner.optimizer.beta2 = config.number("optimizer.beta2");
  for (const char* name : {"optimizer.beta1", "optimizer.beta2"}) {
    if (config.number(name) >= 1) refuse(config, name, "is below 1");
  }
  learner.optimizer.eps = config.number("optimizer.eps");
  learner.optimizer.weight_decay = config.number("optimizer.weight_decay");
  learner.schedule.warmup_steps = config.integer("lr_scheduler.warmup_steps");
  learner.schedule.total_steps =
      config.integer_or("lr_scheduler.total_steps", config.integer("training.steps") * num_updates);
  if (learner.schedule.warmup_steps > learner.schedule.total_steps) {
    refuse(config, "lr_scheduler.warmup_steps",
           concat("is more than the schedule's ", learner.schedule.total_steps, " steps"));
  }
  learner.schedule.decay_ratio = config.number("lr_scheduler.decay_ratio");
  learner.schedule.decay_type = config.string("lr_scheduler.decay_type");
  learner.schedule.min_lr_factor = config.number("lr_scheduler.min_lr_factor");
  learner.max_norm = config.number("training.max_norm");
  learner.num_tokens_per_microbatch = config.integer("training.num_tokens_per_microbatch_per_dp_rank");
  learner.max_context_length = config.integer("training.max_context_length");
  learner.parallel.router_aux_loss_coef = config.number("training.router_aux_loss_coef");
  learner.expert_bias_rate = config.number("training.expert_bias_rate");
  learner.skip_nonfinite_steps = static_cast<int>(config.integer("training.skip_nonfinite_steps"));
  learner.parallel.sharding.parameter_dtype = compute_dtype(config.string("training.mixed_precision_param"));
  learner.parallel.sharding.reduce_dtype = compute_dtype(config.string("training.mixed_precision_reduce"));
  learner.parallel.sharding.reshard_after_forward = config.string("parallelism.fsdp_reshard_after_forward");
  learner.parallel.pipeline = pipeline_options(config);
  learner.parallel.sequence_parallel = config.boolean("parallelism.enable_sequence_parallel");
  learner.parallel.head_tail = config.string("parallelism.context_parallel_load_balancer") == "headtail";
  learner.activation_checkpoint = config.string("activation_checkpoint.mode");
  learner.seed = static_cast<uint64_t>(config.integer("run.seed"));
  learner.deterministic = config.boolean("run.deterministic");
  const auto peak_tflops = config.number("metrics.peak_tflops");
  learner.peak_flops = peak_tflops > 0 ? peak_tflops * 1e12 : -1;
  return learner;
}

CheckpointOptions checkpoint_options(const Config& config) {
  CheckpointOptions checkpoint;
  checkpoint.enable = config.boolean("checkpoint.enable");
  checkpoint.interval = config.integer("checkpoint.interval");
  checkpoint.keep_latest_k = config.integer("checkpoint.keep_latest_k");
  checkpoint.is_async = config.string("checkpoint.async_mode") == "async";
  checkpoint.resume = config.string("checkpoint.resume");
  if (checkpoint.resume != "auto" && checkpoint.resume != "never" &&
      !std::filesystem::is_directory(checkpoint.resume)) {
    refuse(config, "checkpoint.resume",
           "takes \"auto\", \"never\" or a checkpoint folder, and there is no such folder");
  }
  checkpoint.initial_load_path = config.string("checkpoint.initial_load_path");
  if (!checkpoint.initial_load_path.empty() && !std::filesystem::is_directory(checkpoint.initial_load_path))
    refuse(config, "checkpoint.initial_load_path",
           "takes a run folder or a checkpoint folder, and there is no such folder");
  checkpoint.initial_load_model_only = config.boolean("checkpoint.initial_load_model_only");
  checkpoint.last_save_in_hf = config.boolean("checkpoint.last_save_in_hf");
  checkpoint.export_dtype = config.string("checkpoint.export_dtype");
  return checkpoint;
}

constexpr int kMaxThreadRanks = 64;
constexpr int kMaxPlannedRanks = 1 << 20;

MeshDegrees mesh_degrees(const Config& config, int max_ranks = kMaxThreadRanks) {
  const auto degree = [&](const char* key) {
    return static_cast<int>(std::min<int64_t>(config.integer(key), std::numeric_limits<int>::max()));
  };
  MeshDegrees mesh;
  mesh.replicate = degree("parallelism.data_parallel_replicate_degree");
  mesh.shard = degree("parallelism.data_parallel_shard_degree");
  mesh.pipeline = degree("parallelism.pipeline_parallel_degree");
  mesh.context = degree("parallelism.context_parallel_degree");
  mesh.tensor = degree("parallelism.tensor_parallel_degree");
  mesh.expert = degree("parallelism.expert_parallel_degree");
  if (mesh.shard == 0)
    refuse(config, "parallelism.data_parallel_shard_degree", "takes a number of ranks, or -1 for one");
  mesh.shard = std::max(mesh.shard, 1);
  check_mesh(mesh, max_ranks);
  return mesh;
}

LimitOptions limit_options(const Config& config) {
  LimitOptions limits;
  limits.request_timeout_s = config.number("cluster.request_timeout_s");
  return limits;
}

ClusterOptions cluster_options(const Config& config) {
  ClusterOptions cluster;
  cluster.remote_roles = remote_roles(config);
  cluster.bind = config.string("cluster.bind");
  cluster.port = static_cast<int>(config.integer("cluster.port"));
  cluster.weights_port = static_cast<int>(config.integer("cluster.weights_port"));
  cluster.listen = config.boolean("cluster.listen") || cluster.port != 0 ||
                   config.integer("rollout.num_workers") == 0 || !cluster.remote_roles.empty();
  const auto token_file = config.string("cluster.token_file");
  if (!token_file.empty()) cluster.token = read_token_file("cluster.token_file", token_file);
  if (cluster.listen && !is_loopback(cluster.bind) && cluster.token.empty())
    refuse(config, "cluster.bind", "is not loopback: cluster.token_file must name a file with a token");
  cluster.heartbeat_s = config.number("cluster.heartbeat_s");
  cluster.lost_after_s = config.number("cluster.lost_after_s");
  if (cluster.heartbeat_s * 2 > cluster.lost_after_s)
    refuse(config, "cluster.lost_after_s", concat("is below two heartbeats of ", cluster.heartbeat_s, " s"));
  cluster.wait_for_workers_s = config.number("cluster.wait_for_workers_s");
  return cluster;
}

MetricsOptions metrics_options(const Config& config) {
  return {config.integer("metrics.log_freq"), config.boolean("metrics.enable_trace")};
}

int threads(const Config& config) {
  return static_cast<int>(config.integer_or("topology.threads", num_usable_cores()));
}

void check_paths(const Config& config, const std::string& name) {
  for (const auto& path : config.strings(name)) {
    if (!std::filesystem::is_regular_file(path)) refuse(config, name, "there is no file " + path);
  }
}

PromptSourceOptions prompt_options(const Config& config) {
  PromptSourceOptions data;
  data.kind = config.string("data.kind");
  if (data.kind == "text") refuse(config, "data.kind", "is for pre-training; RL takes jsonl or arithmetic");
  data.paths = config.strings("data.paths");
  if (data.kind == "jsonl" && data.paths.empty())
    refuse(config, "data.paths", "data.kind = \"jsonl\" needs at least one file");
  check_paths(config, "data.paths");
  data.prompt_field = config.string("data.prompt_field");
  data.answer_field = config.string("data.answer_field");
  data.system = config.string("data.system");
  data.seed = static_cast<uint64_t>(config.integer_or("data.seed", config.integer("run.seed")));
  data.skip_bad_lines = config.boolean("data.skip_bad_lines");
  data.num_digits = config.integer("data.num_digits");
  data.operators = config.string("data.operators");
  data.template_text = config.string("data.template");
  if (data.kind == "arithmetic" &&
      (data.operators.empty() || data.operators.find_first_not_of("+-*") != std::string::npos)) {
    refuse(config, "data.operators", "takes any of + - *");
  }
  return data;
}

EvaluationOptions evaluation_options(const Config& config, const PromptSourceOptions& training_data) {
  EvaluationOptions evaluation;
  evaluation.num_prompts = config.integer("evaluation.num_prompts");
  evaluation.interval = config.integer("evaluation.interval");
  const auto kind = config.string("evaluation.kind");
  evaluation.data = training_data;
  evaluation.data.kind = kind == "auto" ? training_data.kind : kind;
  evaluation.data.paths = config.strings("evaluation.paths");
  evaluation.num_samples = config.integer("evaluation.num_samples");
  evaluation.keep_best = config.boolean("evaluation.keep_best");
  evaluation.data.seed = static_cast<uint64_t>(config.integer("evaluation.seed"));
  evaluation.data.held_out = true;
  check_paths(config, "evaluation.paths");
  evaluation.enable = evaluation.num_prompts > 0;
  if (evaluation.data.kind == "jsonl" && evaluation.data.paths.empty()) {
    if (kind == "jsonl") refuse(config, "evaluation.paths", "evaluation.kind = \"jsonl\" needs at least one file");
    evaluation.enable = false;  // no held-out file was named: nothing to evaluate on
  }
  return evaluation;
}

/// `are_elsewhere`: no rule runs in this process.
std::vector<RewardOptions> reward_options(const Config& config, bool are_elsewhere) {
  if (config.rewards().empty()) {
    throw UsageError("no [[reward]] table: RL needs at least one, for example\n[[reward]]\nkind = \"number\"");
  }
  constexpr double kLongestTimeout = 1e6;
  std::vector<RewardOptions> rewards;
  for (const auto& table : config.rewards()) {
    RewardOptions reward;
    reward.settings = table;
    reward.is_elsewhere = are_elsewhere;
    auto take = [&](const char* key, auto fallback) {
      const auto found = reward.settings.find(key);
      if (found == reward.settings.end()) return fallback;
      try {
        fallback = found->template get<decltype(fallback)>();
      } catch (const nlohmann::json::exception&) {
        throw UsageError(concat("reward.", key, " = ", found->dump(), " has the wrong type"));
      }
      reward.settings.erase(key);
      return fallback;
    };
    reward.kind = take("kind", std::string());
    if (reward.kind.empty())
      throw UsageError(concat("a [[reward]] table needs a kind; known: ", join(known_reward_kinds(), ", ")));
    reward.name = take("name", reward.kind);
    reward.weight = take("weight", 1.0);
    reward.timeout_s = take("timeout_s", 10.0);
    if (!std::isfinite(reward.weight)) throw UsageError(concat("reward.weight = ", reward.weight, " is not finite"));
    if (reward.timeout_s > kLongestTimeout)
      throw UsageError(concat("reward.timeout_s = ", reward.timeout_s, " is above ", kLongestTimeout));
    for (const auto& [key, value] : reward.settings.items())
      if (value.is_number_float() && !std::isfinite(value.get<double>()))
        throw UsageError(concat("reward.", key, " of ", reward.name, " is not finite"));
    if (!(reward.timeout_s > 0)) throw UsageError(concat("reward.timeout_s = ", reward.timeout_s, " is not above 0"));
    if (std::any_of(rewards.begin(), rewards.end(), [&](const auto& other) { return other.name == reward.name; })) {
      throw UsageError(concat("two [[reward]] tables are called ", reward.name, ": give each a name"));
    }
    make_reward_function(reward);  // wrong settings are found before anything is loaded
    rewards.push_back(std::move(reward));
  }
  return rewards;
}

EnvironmentOptions environment_options(const Config& config) {
  EnvironmentOptions environment;
  environment.kind = config.string("environment.kind");
  environment.max_turns = static_cast<int>(config.integer("environment.max_turns"));
  environment.timeout_s = config.number("environment.timeout_s");
  environment.remote.address = config.string("environment.address");
  environment.remote.command = config.string("environment.command");
  environment.remote.reconnect_s = config.number("environment.reconnect_s");
  environment.remote.num_parallel = static_cast<int>(config.integer("environment.num_parallel"));
  make_environment(environment);  // wrong settings are found before anything is loaded
  return environment;
}

SamplingOptions sampling_options(const Config& config) {
  SamplingOptions sampling;
  sampling.temperature = config.number("sampling.temperature");
  if (sampling.temperature < 1e-4)
    refuse(config, "sampling.temperature",
           "training needs samples: a temperature above 0, at least 0.0001 (greedy decoding explores nothing)");
  sampling.top_p = config.number("sampling.top_p");
  if (sampling.top_p <= 0) refuse(config, "sampling.top_p", "is above 0");
  sampling.top_k = static_cast<int32_t>(config.integer("sampling.top_k"));
  sampling.min_p = config.number("sampling.min_p");
  sampling.max_new_tokens = static_cast<int32_t>(config.integer("sampling.max_new_tokens"));
  if (sampling.max_new_tokens >= config.integer("training.max_context_length")) {
    refuse(config, "sampling.max_new_tokens",
           concat("leaves no room for a prompt in training.max_context_length = ",
                  config.integer("training.max_context_length")));
  }
  sampling.stop = config.strings("sampling.stop");
  if (std::find(sampling.stop.begin(), sampling.stop.end(), "") != sampling.stop.end())
    refuse(config, "sampling.stop", "holds an empty string, which is everywhere");
  return sampling;
}

RolloutOptions rollout_options(const Config& config) {
  RolloutOptions rollout;
  rollout.num_workers = static_cast<int>(config.integer("rollout.num_workers"));
  rollout.engine.max_sequences = static_cast<int32_t>(config.integer("rollout.max_sequences"));
  rollout.engine.kv_cache_mib = config.integer_or("rollout.kv_cache_mib", 0);
  rollout.engine.kv_block_tokens = static_cast<int32_t>(config.integer("rollout.kv_block_tokens"));
  rollout.engine.prefill_chunk_tokens = static_cast<int32_t>(config.integer("rollout.prefill_chunk_tokens"));
  rollout.engine.max_context_length = config.integer("training.max_context_length");
  rollout.engine.seed = static_cast<uint64_t>(config.integer("run.seed"));
  rollout.engine.deterministic = config.boolean("run.deterministic");
  const auto policy = config.string("rollout.on_weights");
  rollout.engine.on_weights = policy == "keep"        ? OnWeights::kKeep
                              : policy == "recompute" ? OnWeights::kRecompute
                                                      : OnWeights::kFinish;
  rollout.dtype = config.string("rollout.dtype");
  rollout.group_to_worker = config.string("rollout.group_to_worker");
  rollout.num_threads = static_cast<int>(config.integer_or("topology.rollout_threads", 0));
  return rollout;
}

TextDataOptions text_data_options(const Config& config, const std::string& kind, const std::string& command) {
  TextDataOptions data;
  const auto given = config.string("data.kind");
  if (kind != "text" && given != kind && given != "jsonl")
    refuse(config, "data.kind", concat(command, " takes ", kind));
  if (kind == "text" && given != "text" && given != "jsonl")
    refuse(config, "data.kind", concat(command, " takes text or jsonl"));
  data.kind = given;
  data.paths = config.strings("data.paths");
  if (data.paths.empty()) refuse(config, "data.paths", concat(command, " needs at least one file"));
  check_paths(config, "data.paths");
  data.text_field = config.string("data.text_field");
  data.chat.messages_field = config.string("data.messages_field");
  data.chat.prompt_field = config.string("data.prompt_field");
  data.chat.completion_field = config.string("data.completion_field");
  data.chat.system = config.string("data.system");
  data.chat.turns = config.string("data.assistant_turns") == "all" ? AssistantTurns::kAll : AssistantTurns::kLast;
  data.chosen_field = config.string("data.chosen_field");
  data.rejected_field = config.string("data.rejected_field");
  data.margin_field = config.string("data.margin_field");
  data.skip_bad_lines = config.boolean("data.skip_bad_lines");
  if (!config.string("data.validation").empty()) {
    data.validation_paths = {config.string("data.validation")};
    if (!std::filesystem::is_regular_file(config.string("data.validation")))
      refuse(config, "data.validation", "there is no such file");
  }
  data.seed = static_cast<uint64_t>(config.integer_or("data.seed", config.integer("run.seed")));
  return data;
}

/// What every run of the trainer alone has.
PretrainTopology trainer_topology(const Config& config, const std::string& kind, const std::string& command) {
  refuse_places(config);
  PretrainTopology topology;
  topology.run = run_options(config);
  topology.model = model_options(config);
  topology.mesh = mesh_degrees(config);
  topology.learner = learner_options(config, 1);
  topology.data = text_data_options(config, kind, command);
  topology.sequence_length = config.integer("training.max_context_length");
  topology.validation_interval = config.integer("evaluation.interval");
  topology.checkpoint = checkpoint_options(config);
  topology.limits = limit_options(config);
  topology.metrics = metrics_options(config);
  topology.threads = threads(config);
  return topology;
}

/// Rows of the context's length, in whole micro-batches of every rank.
void set_row_tokens(const Config& config, PretrainTopology& topology) {
  const auto microbatch = config.integer("training.num_tokens_per_microbatch_per_dp_rank");
  if (microbatch < topology.sequence_length) {
    refuse(config, "training.num_tokens_per_microbatch_per_dp_rank",
           concat("is below training.max_context_length = ", topology.sequence_length));
  }
  const auto tokens = config.integer("training.num_tokens_per_train_step");
  const auto num_ranks = topology.mesh.num_data_ranks();
  topology.num_tokens_per_train_step = tokens > 0 ? tokens : microbatch * num_ranks;
  if (topology.num_tokens_per_train_step % (microbatch * num_ranks) != 0) {
    refuse(config, "training.num_tokens_per_train_step",
           concat("is not a multiple of ", microbatch, " tokens a micro-batch * ", num_ranks,
                  " data ranks = ", microbatch * num_ranks));
  }
}

void set_preferences(const Config& config, PretrainTopology& topology, bool is_reward_model) {
  topology.objective = TrainObjective::kPreference;
  topology.num_pairs_per_train_step = config.integer("preference.num_pairs_per_train_step");
  auto& preference = topology.learner.preference;
  preference.loss = is_reward_model ? "bradley-terry" : config.string("preference.loss");
  preference.center = config.number("preference.center");
  if (is_reward_model) return;  // beta and label_smoothing are a policy's
  preference.beta = config.number("preference.beta");
  preference.label_smoothing = config.number("preference.label_smoothing");
}

}  // namespace

namespace {

/// What the models of a run are built by.
RlTopology models_topology(const Config& config, bool with_template) {
  RlTopology topology;
  topology.run = run_options(config);
  topology.model = model_options(config, with_template);
  topology.mesh = mesh_degrees(config);
  topology.sampling = sampling_options(config);
  const auto algorithm = algorithm_options(config);
  topology.learner = learner_options(config, algorithm.num_epochs * algorithm.num_minibatches);
  topology.learner.algorithm = algorithm;
  topology.limits = limit_options(config);
  return topology;
}

}  // namespace

RlTopology build_judge_topology(const Config& config, const std::string& role) {
  auto topology = models_topology(config, false);
  if (role == "critic")
    topology.critic = critic_options(config, topology.model, topology.learner.algorithm);
  else
    topology.reference = reference_options(config, topology.model, topology.learner.algorithm);
  topology.checkpoint.export_dtype = config.string("checkpoint.export_dtype");
  topology.checkpoint.keep_latest_k = config.integer("checkpoint.keep_latest_k");
  topology.checkpoint.is_async = config.string("checkpoint.async_mode") == "async";
  return topology;
}

RlTopology build_rl_topology(const Config& config) {
  auto topology = models_topology(config, true);
  topology.environment = environment_options(config);
  check_algorithm_setting(config, topology.learner.algorithm);
  topology.reference = reference_options(config, topology.model, topology.learner.algorithm);
  topology.critic = critic_options(config, topology.model, topology.learner.algorithm);
  topology.data = prompt_options(config);
  topology.async_loop.target_offpolicy_steps = config.integer("async_loop.target_offpolicy_steps");
  topology.async_loop.window_groups = config.integer("async_loop.window_groups");
  topology.async_loop.num_prompts_per_train_step = config.integer("async_loop.num_prompts_per_train_step");
  topology.async_loop.num_samples_per_prompt = config.integer("async_loop.num_samples_per_prompt");
  topology.async_loop.max_refill_rounds = config.integer("algorithm.max_refill_rounds");
  if (topology.run.deterministic && topology.async_loop.target_offpolicy_steps != 0) {
    refuse(config, "run.deterministic",
           concat("needs async_loop.target_offpolicy_steps = 0, not ", topology.async_loop.target_offpolicy_steps));
  }
  topology.rollout = rollout_options(config);
  topology.cluster = cluster_options(config);
  if (topology.run.deterministic && topology.cluster.listen)
    refuse(config, "run.deterministic", "fixes which worker makes which group: nobody may join (cluster.listen)");
  if (topology.run.deterministic && config.is_default("rollout.group_to_worker"))
    topology.rollout.group_to_worker = "fixed";
  if (topology.run.deterministic && topology.rollout.group_to_worker != "fixed")
    refuse(config, "rollout.group_to_worker", "run.deterministic needs \"fixed\"");
  topology.evaluation = evaluation_options(config, topology.data);
  // Evaluation grades in this process.
  topology.rewards =
      reward_options(config, topology.cluster.remote_roles.contains("reward") && !topology.evaluation.enable);
  topology.checkpoint = checkpoint_options(config);
  topology.metrics = metrics_options(config);
  topology.threads = threads(config);
  return topology;
}

PretrainTopology build_pretrain_topology(const Config& config) {
  auto topology = trainer_topology(config, "text", "pre-training");
  set_row_tokens(config, topology);
  return topology;
}

PretrainTopology build_sft_topology(const Config& config) {
  auto topology = trainer_topology(config, "chat", "sft");
  topology.objective = TrainObjective::kChat;
  set_row_tokens(config, topology);
  return topology;
}

PretrainTopology build_reward_model_topology(const Config& config) {
  auto topology = trainer_topology(config, "preference", "reward-model");
  set_preferences(config, topology, true);
  topology.model.is_reward_model = true;
  check_preference(topology.learner.preference);
  return topology;
}

PretrainTopology build_dpo_topology(const Config& config) {
  auto topology = trainer_topology(config, "preference", "dpo");
  set_preferences(config, topology, false);
  check_preference(topology.learner.preference);
  topology.reference = other_model(config, "reference.path", topology.model);
  return topology;
}

PlanTopology build_plan_topology(const Config& config) {
  refuse_places(config);
  PlanTopology plan;
  plan.model_path = model_options(config).path;
  plan.mesh = mesh_degrees(config, kMaxPlannedRanks);
  plan.parallel = learner_options(config, 1).parallel;
  plan.parallel.recompute = parse_recompute_mode(config.string("activation_checkpoint.mode"));
  // What "auto" means on this machine says nothing about the devices that are planned for.
  if (config.string("training.mixed_precision_param") == "auto") plan.parallel.sharding.parameter_dtype = at::kBFloat16;
  PretrainTopology rows;
  rows.mesh = plan.mesh;
  rows.sequence_length = config.integer("training.max_context_length");
  set_row_tokens(config, rows);
  const auto microbatch = config.integer("training.num_tokens_per_microbatch_per_dp_rank");
  plan.shape = {rows.sequence_length, microbatch,
                static_cast<int>(rows.num_tokens_per_train_step / (microbatch * plan.mesh.num_data_ranks()))};
  return plan;
}

}  // namespace troupe::apps
