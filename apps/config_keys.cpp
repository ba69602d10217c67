// The table of configuration keys: the one place where a key exists. docs/configuration.md is printed from it.
#include <algorithm>

#include "apps/algorithm_keys.h"
#include "parallel/pipeline_schedule.h"

namespace troupe::apps {
namespace {

// What is beyond these is a slip of the keyboard, and sums and products of such numbers would overflow.
constexpr double kMostNumber = 1e12, kMostTokens = 1 << 24, kMostGroups = 1 << 20, kMostThreads = 4096,
                 kMostSeconds = 1e9, kMostSeed = 1e18;

KeySpec integer(std::string name, int64_t value, std::string help, double minimum = -kMostNumber,
                double maximum = kMostNumber) {
  return {std::move(name), KeyType::kInteger, value, std::move(help), {}, minimum, maximum};
}
KeySpec number(std::string name, double value, std::string help, double minimum = -1e300, double maximum = 1e300) {
  return {std::move(name), KeyType::kNumber, value, std::move(help), {}, minimum, maximum};
}
KeySpec boolean(std::string name, bool value, std::string help) {
  return {std::move(name), KeyType::kBoolean, value, std::move(help)};
}
KeySpec text(std::string name, std::string value, std::string help) {
  return {std::move(name), KeyType::kString, value, std::move(help)};
}
KeySpec choice(std::string name, std::string value, std::vector<std::string> choices, std::string help) {
  return {std::move(name), KeyType::kString, value, std::move(help), std::move(choices)};
}
KeySpec list(std::string name, std::string help) {
  return {std::move(name), KeyType::kStringList, nlohmann::json::array(), std::move(help)};
}
KeySpec automatic(std::string name, std::string help, double minimum = 1, double maximum = kMostNumber) {
  return {std::move(name), KeyType::kIntegerOrAuto, "auto", std::move(help), {}, minimum, maximum};
}

std::vector<KeySpec> make_plain_keys() {
  const std::vector<std::string> dtypes{"auto", "float32", "bfloat16"};
  return {
      text("run.name", "run", "name of the run; part of the default folder"),
      text("run.folder", "", "run folder; empty: runs/<run.name>"),
      integer("run.seed", 0, "seed of every random number of the run", 0, kMostSeed),
      boolean("run.record_batches", false, "keep every batch of RL in the run folder, for troupe replay"),
      boolean("run.deterministic", false,
              "repeat and resume bit for bit: synchronous, fixed group to worker, ordered batches"),

      text("model.path", "", "Hugging Face folder or GGUF file; needed"),
      boolean("model.random_init", false,
              "start from random weights: only the configuration and tokenizer are read from model.path"),

      integer("training.steps", 100, "train steps of the whole run", 1),
      number("training.max_norm", 1.0, "global gradient norm is clipped to this; 0: not clipped", 0),
      choice("training.mixed_precision_param", "auto", dtypes,
             "dtype of compute; auto: bfloat16 where the processor has it"),
      choice("training.mixed_precision_reduce", "float32", {"float32", "bfloat16"}, "dtype of gradients between ranks"),
      integer("training.num_tokens_per_microbatch_per_dp_rank", 4096,
              "packed tokens of one forward and backward; a sample of RL that is longer has one to itself", 1, 1 << 30),
      integer("training.num_tokens_per_train_step", -1,
              "pre-training: tokens of one step over all ranks; -1: one micro-batch a rank", -1),
      integer("training.max_context_length", 2048, "longest sequence in tokens", 2, kMostTokens),
      number(
          "training.expert_bias_rate", 0.0,
          "balance of experts without a loss, for routers with a bias that only chooses (DeepSeek-V3: 0.001): a step "
          "moves it by this towards even load; 0: off",
          0),
      number("training.router_aux_loss_coef", 0.0,
             "coefficient of the balancing loss of routers that choose by softmax, as transformers computes it; 0: off",
             0),
      integer("training.skip_nonfinite_steps", 3,
              "steps in a row with a non-finite loss or gradient before the run stops", 0, 1e9),

      choice("optimizer.name", "adamw", {"adamw"}, "optimizer"),
      number("optimizer.lr", 1e-6, "learning rate after warm-up", 0),
      number("optimizer.beta1", 0.9, "AdamW: decay of the first moment", 0, 1),
      number("optimizer.beta2", 0.95, "AdamW: decay of the second moment", 0, 1),
      number("optimizer.eps", 1e-8, "AdamW: added to the root of the second moment", 1e-30),
      number("optimizer.weight_decay", 0.0, "decoupled weight decay of matrices (norms and biases take none)", 0),

      integer("lr_scheduler.warmup_steps", 0,
              "optimizer steps of linear warm-up; a train step of RL makes num_epochs * num_minibatches of them", 0),
      automatic("lr_scheduler.total_steps",
                "length of the schedule in optimizer steps; auto: those of training.steps, for RL times num_epochs * "
                "num_minibatches"),
      number("lr_scheduler.decay_ratio", 0.0,
             "share of the schedule, at its end, in which the rate decays; 0: constant", 0, 1),
      choice("lr_scheduler.decay_type", "linear", {"linear", "sqrt", "cosine"}, "shape of the decay"),
      number("lr_scheduler.min_lr_factor", 0.0, "the rate never falls below this share of optimizer.lr", 0, 1),

      integer("parallelism.data_parallel_shard_degree", -1,
              "trainer ranks over which parameters, gradients and optimizer state are sharded; -1: one", -1),
      integer("parallelism.data_parallel_replicate_degree", 1,
              "replicas, each of which shards the whole model (hybrid sharding); the product of all degrees is the "
              "number of ranks",
              1),
      integer("parallelism.tensor_parallel_degree", 1,
              "ranks that share every layer's heads and features, and the vocabulary's tokens", 1),
      boolean("parallelism.enable_sequence_parallel", true,
              "with tensor parallel: between layers each rank keeps a part of the tokens"),
      integer(
          "parallelism.expert_parallel_degree", 1,
          "of the ranks of data_parallel_shard_degree * context_parallel_degree * tensor_parallel_degree, those that "
          "share a layer's experts; it divides that product and the number of experts",
          1),
      integer("parallelism.context_parallel_degree", 1, "ranks that share a row's tokens, by ring attention", 1),
      choice("parallelism.context_parallel_load_balancer", "headtail", {"headtail", "none"},
             "headtail: each rank takes tokens from both ends of a row, so that all attend to about as many"),
      integer("parallelism.pipeline_parallel_degree", 1, "ranks that share the layers, as stages", 1),
      choice("parallelism.pipeline_parallel_schedule", "1F1B", known_pipeline_schedules(),
             "the order of forwards and backwards of the micro-batches"),
      integer("parallelism.pipeline_parallel_stages_per_rank", 2, "of Interleaved1F1B", 1, 64),
      text("parallelism.pipeline_parallel_layers_per_stage", "",
           "layers of every stage in order, as \"7,8,8,7\"; empty: as even as can be"),
      choice("parallelism.fsdp_reshard_after_forward", "default", {"default", "always", "never"},
             "whether a layer's gathered parameters are freed after its forward"),
      choice("parallelism.ranks", "threads", {"threads"}, "ranks are threads of this process"),
      choice("activation_checkpoint.mode", "none", {"none", "selective", "full"},
             "what the backward recomputes instead of keeping"),

      boolean("checkpoint.enable", true, "save checkpoints"),
      integer("checkpoint.interval", 50, "steps between checkpoints", 1),
      integer("checkpoint.keep_latest_k", 3, "older checkpoints are removed; 0: keep all", 0),
      choice("checkpoint.async_mode", "async", {"async", "disabled"},
             "async: training goes on while a checkpoint is written from a copy of the state (12 bytes a parameter); "
             "disabled: it waits"),
      boolean("checkpoint.last_save_in_hf", true,
              "write the trained model as a Hugging Face folder (model/) at the end"),
      choice("checkpoint.export_dtype", "float32", {"float32", "bfloat16"}, "dtype of that folder"),
      text("checkpoint.initial_load_path", "",
           "run or checkpoint folder that a run without a checkpoint of its own starts from"),
      boolean("checkpoint.initial_load_model_only", true,
              "take the weights alone and begin at step 0; false: go on as that run would"),
      text("checkpoint.resume", "auto",
           "\"auto\": from the newest valid checkpoint of the run folder; \"never\"; or a checkpoint folder"),

      choice("data.kind", "jsonl", {"jsonl", "arithmetic", "text", "chat", "preference"},
             "what the data is; sft takes chat, reward-model and dpo take preference, whether it is said or not"),
      list("data.paths", "files of the data set"),
      automatic("data.seed", "seed of the data order; auto: run.seed", 0, kMostSeed),
      text("data.validation", "",
           "without rollouts: validation file; empty: 5 % of the data, chosen by a hash of its text. At most 65536 "
           "tokens or 512 pairs of it are looked at"),
      text("data.prompt_field", "prompt", "JSONL: field with the prompt (a string, or a list of messages)"),
      text("data.answer_field", "answer", "JSONL: field with the answer that rewards compare with"),
      text("data.messages_field", "messages", "chats: field with the list of messages"),
      text("data.completion_field", "completion", "chats: field with the answer to data.prompt_field"),
      choice("data.assistant_turns", "all", {"all", "last"}, "chats: which of the assistant's turns are learned"),
      text("data.chosen_field", "chosen", "pairs: field with the better answer (a text, or a list of messages)"),
      text("data.rejected_field", "rejected", "pairs: field with the worse answer"),
      text("data.margin_field", "margin",
           "pairs: field with the difference that scores should have, where it is there"),
      text("data.text_field", "text", "JSONL pre-training: field with the document"),
      text("data.system", "", "system turn before each prompt"),
      text("data.chat_template", "", "file with a chat template; empty: the model's own"),
      boolean("data.skip_bad_lines", false, "count and leave out records that cannot be read, instead of stopping"),
      integer("data.num_digits", 2, "arithmetic: digits of each operand", 1, 9),
      text("data.operators", "+", "arithmetic: operators to draw from, any of + - *"),
      text("data.template", "What is {a} {op} {b}? Answer with the number only.", "arithmetic: the question"),

      integer("async_loop.target_offpolicy_steps", 1,
              "S: how many versions old a batch's oldest token may be; 0: synchronous", 0, 1000),
      integer("async_loop.window_groups", 1,
              "W: a batch may take any complete one of the W oldest groups; tokens may then be (W-1)/P versions older, "
              "rounded up",
              1),
      integer("async_loop.num_prompts_per_train_step", 8, "P: groups of one train step", 1, kMostGroups),
      integer("async_loop.num_samples_per_prompt", 8, "samples of one group", 1, 4095),

      integer("rollout.num_workers", 2, "rollout actors in this process; 0: all join from others (cluster.listen)", 0,
              1024),
      integer("rollout.max_sequences", 32, "sequences that one worker decodes at a time", 1, 65536),
      automatic("rollout.kv_cache_mib",
                "KV cache of one worker in MiB, taken from the system as it fills; auto: what max_sequences of "
                "max_context_length need (--dry-run prints it)",
                1, 1 << 30),
      integer("rollout.kv_block_tokens", 16, "tokens of one cache block", 1, 1024),
      integer("rollout.prefill_chunk_tokens", 512, "prompt tokens computed between two decode steps", 1, 1 << 20),
      choice("rollout.on_weights", "keep", {"keep", "recompute", "finish"},
             "running sequences at a weight update: keep their cache, rebuild it, or finish first"),
      choice("rollout.dtype", "auto", dtypes, "dtype of compute; auto: bfloat16 where the processor has it"),
      choice("rollout.group_to_worker", "least_loaded", {"least_loaded", "sticky", "fixed"},
             "which worker takes a group"),

      number("sampling.temperature", 1.0, "softmax temperature; 0 (greedy) is refused for training", 0),
      number("sampling.top_p", 1.0, "nucleus: smallest set of tokens with this probability; 1: off", 0, 1),
      integer("sampling.top_k", 0, "only the k best tokens; 0: off", 0, 1 << 30),
      number("sampling.min_p", 0.0, "only tokens with this share of the best one's probability; 0: off", 0, 1),
      integer("sampling.max_new_tokens", 128, "longest completion in tokens; with an environment: longest turn", 1,
              kMostTokens),
      list("sampling.stop", "strings that end a completion"),

      text("environment.kind", "",
           "who answers the policy's turns (docs/remote.md): calculator, remote; empty: a sample is one turn"),
      integer("environment.max_turns", 4, "most turns of the policy in a sample", 1, 1000),
      number("environment.timeout_s", 10.0, "limit of one answer in seconds", 0.001),
      text("environment.address", "", "remote: tcp://HOST:PORT or ipc://PATH where it listens"),
      text("environment.command", "",
           "remote: started, restarted and ended with each rollout process (in sh); its TROUPE_ADDRESS says where to "
           "listen"),
      number("environment.reconnect_s", 60.0, "remote: how long a process that is not there is waited for", 0.001),
      integer("environment.num_parallel", 8, "remote: questions under way at a time", 1, 256),

      // Further keys of this section: apps/algorithm_keys.cpp.
      integer("algorithm.max_refill_rounds", 4, "\"refill\": rounds before training on what there is", 1),

      text("reference.path", "",
           "model that a KL, DPO or IPO is measured against; empty: model.path, the weights of the start"),

      text("critic.path", "",
           "ppo: model that the critic starts from, such as a reward model; empty: model.path with a fresh head"),
      number("critic.lr", 1e-5, "ppo: learning rate of the critic; its other settings are those of [optimizer]", 0),
      integer("critic.warmup_steps", 0, "ppo: train steps at the start in which only the critic learns", 0),

      choice("preference.loss", "dpo", {"dpo", "ipo"}, "dpo: what pairs do to the policy"),
      number("preference.beta", 0.1, "dpo: how closely the policy is held to the reference", 0),
      number("preference.label_smoothing", 0.0, "dpo: share of pairs that are taken to be the wrong way round", 0, 0.5),
      number("preference.center", 0.0, "reward-model: weight of the square of both scores' sum", 0),
      integer("preference.num_pairs_per_train_step", 16, "pairs of one step over all ranks", 1, kMostGroups),

      integer("evaluation.interval", 0, "train steps between evaluations; 0: at the start and the end", 0),
      integer("evaluation.num_prompts", 64, "held-out prompts; 0: no evaluation", 0, kMostGroups),
      choice("evaluation.kind", "auto", {"auto", "jsonl", "arithmetic"},
             "held-out data; auto: like data.kind, of another stream"),
      list("evaluation.paths", "JSONL: files of the held-out set"),
      integer("evaluation.seed", 99, "seed of the held-out set", 0, kMostSeed),
      integer("evaluation.num_samples", 1, "answers a prompt; 1: greedy, more: drawn, for avg@k and pass@k", 1, 4096),
      boolean("evaluation.keep_best", true, "write the weights of the best score to best/ of the run folder"),

      automatic("topology.threads",
                "compute threads; auto: all cores. The trainer's ranks divide them, and so do the rollout workers: "
                "while both are busy there are twice as many",
                1, kMostThreads),
      automatic("topology.rollout_threads",
                "threads of one rollout worker; auto: topology.threads / rollout.num_workers, at least 1", 1,
                kMostThreads),

      boolean(
          "cluster.listen", false,
          "workers of other processes may join (troupe worker --join); follows from rollout.num_workers = 0 and from "
          "cluster.port"),
      text("cluster.bind", "127.0.0.1",
           "address to listen at; one that is not loopback needs cluster.token_file and belongs to a private network"),
      integer("cluster.port", 0, "port that workers join at; 0: any, printed at the start", 0, 65535),
      integer("cluster.weights_port", 0, "port that weights come from; 0: any, told to each worker", 0, 65535),
      text("cluster.token_file", "", "file whose first line every joining worker must show; empty: none"),
      number("cluster.heartbeat_s", 1.0, "seconds between signs of life to workers of other processes", 0.01,
             kMostSeconds),
      number("cluster.lost_after_s", 10.0, "a worker without a sign of life is lost, and its work goes to others", 0.05,
             kMostSeconds),
      number("cluster.wait_for_workers_s", 600.0,
             "how long a run goes on without any rollout worker, or waits for one of a role that is placed in workers "
             "([[topology.place]]), before it stops",
             0.1, kMostSeconds),
      number("cluster.request_timeout_s", 600.0,
             "seconds that an actor waits for another's answer; the trainer waits 3 times that for a batch and for a "
             "decision on what comes next",
             0.001, kMostSeconds),

      integer("metrics.log_freq", 1, "steps between console lines", 1),
      number("metrics.peak_tflops", 0.0,
             "1e12 operations a second of all trainer ranks together, for mfu(%); 0: measured by a matrix product", 0),
      boolean("metrics.enable_trace", false,
              "write trace.json (Chrome and Perfetto read it) with the busy spans of every role"),
      choice("metrics.console", "auto", {"auto", "plain", "quiet"},
             "auto: a progress bar on a terminal, plain lines elsewhere"),
  };
}

/// The algorithm's own table stands before the plain keys of its section.
std::vector<KeySpec> make_keys() {
  auto keys = make_plain_keys();
  const auto section =
      std::find_if(keys.begin(), keys.end(), [](const KeySpec& key) { return key.name.starts_with("algorithm."); });
  const auto algorithm = algorithm_keys();
  keys.insert(section, algorithm.begin(), algorithm.end());
  return keys;
}

}  // namespace

const std::vector<KeySpec>& config_keys() {
  static const std::vector<KeySpec> keys = make_keys();
  return keys;
}

}  // namespace troupe::apps
