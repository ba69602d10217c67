// Builds the cast of an RL run from its topology and plays it.
#include <atomic>

#include "actors/buffer.h"
#include "actors/director.h"
#include "actors/engine_work.h"
#include "actors/evaluator.h"
#include "actors/gate.h"
#include "actors/remote_judge.h"
#include "actors/remote_service.h"
#include "actors/reward.h"
#include "actors/reward_pool.h"
#include "actors/rl_models.h"
#include "actors/run_checkpoint.h"
#include "actors/run_setup.h"
#include "actors/trainer.h"
#include "base/cpu.h"
#include "base/error.h"
#include "base/file.h"
#include "rollout/forward_pass.h"

namespace troupe {
namespace {

void check(const RlTopology& t) {
  if (t.sampling.temperature <= 0)
    throw UsageError("sampling.temperature = 0 explores nothing: training needs a temperature above 0");
  if (t.rewards.empty()) throw UsageError("no [[reward]]: RL needs at least one");
  if (t.run.deterministic && t.async_loop.target_offpolicy_steps != 0)
    throw UsageError(concat("run.deterministic needs async_loop.target_offpolicy_steps = 0, not ",
                            t.async_loop.target_offpolicy_steps));
  if (t.async_loop.num_samples_per_prompt < 1 ||
      t.async_loop.num_samples_per_prompt >= static_cast<int64_t>(kSamplesPerGroupLimit))
    throw UsageError(concat("async_loop.num_samples_per_prompt = ", t.async_loop.num_samples_per_prompt,
                            " is not within 1 and 4095"));
  if (t.rollout.num_workers < 0 || (t.rollout.num_workers == 0 && !t.cluster.listen))
    throw UsageError("rollout.num_workers must be at least 1 where no other process may join (cluster.listen)");
  if (!t.cluster.remote_roles.empty() && !t.cluster.listen)
    throw UsageError(concat("[[topology.place]] of the ", *t.cluster.remote_roles.begin(),
                            " in other processes needs cluster.listen = true"));
  const auto& algorithm = t.learner.algorithm;
  if (t.cluster.remote_roles.contains("critic") && !needs_critic(algorithm))
    throw UsageError(concat("[[topology.place]]: algorithm.name = \"", algorithm.name, "\" has no critic to place"));
  if (t.cluster.remote_roles.contains("reference") && !needs_reference(algorithm))
    throw UsageError("[[topology.place]]: without algorithm.kl_coefficient there is no reference to place");
  if (t.run.deterministic && t.cluster.listen)
    throw UsageError(
        "run.deterministic fixes which worker makes which group: nobody may join (cluster.listen = false)");
  if (t.cluster.listen && !is_loopback(t.cluster.bind) && t.cluster.token.empty())
    throw UsageError(concat("cluster.bind = \"", t.cluster.bind,
                            "\" is not loopback: cluster.token_file must name a file with a token"));
}

/// Where workers of other processes are let in, and what they are told.
void add_gate(CastList& cast, const ClusterOptions& cluster, WorkerSettings settings,
              const std::vector<RewardOptions>& rewards, const ModelSource& model,
              std::map<std::string, std::string> judges, int num_workers,
              const std::shared_ptr<WeightPublisher>& publisher, const std::shared_ptr<ObserverGate>& observer) {
  const auto description = model.description();
  GateSetup gate;
  gate.rules = {TROUPE_VERSION, cluster.token, description.fingerprint(), cluster.lost_after_s, cluster.remote_roles};
  gate.judges = std::move(judges);
  gate.grader = {settings.run, rewards, cluster.lost_after_s};
  settings.model_config = description.config;
  settings.lost_after_s = cluster.lost_after_s;
  gate.settings = std::move(settings);
  gate.text_files = description.text_files;
  gate.publisher = publisher;
  gate.observer = observer;
  gate.num_joined = std::make_shared<std::atomic<int>>(0);
  gate.first_seat = num_workers;
  gate.bind = cluster.bind;
  gate.port = cluster.port;
  cast.num_joined = [joined = gate.num_joined] { return joined->load(); };
  cast.start_gate = [gate](caf::actor_system& system, director_actor director, reward_actor reward) {
    return spawn_gate(system, std::move(director), std::move(reward), gate);
  };
}

}  // namespace

int run_rl(const RlTopology& topology) {
  use_zmq_for_remote_services();
  check(topology);
  const int threads = topology.threads > 0 ? topology.threads : num_usable_cores();
  const auto observer = std::make_shared<ObserverGate>(topology.observer);
  const auto trace = std::make_shared<Trace>(topology.metrics.enable_trace);
  const auto models = open_models(topology);
  const auto& model = models.policy;
  const std::shared_ptr<const PromptSource> prompts = make_prompt_source(topology.data);
  for (const auto& reward : topology.rewards)
    make_reward_function(reward);  // wrong settings are found before anything starts
  make_environment(topology.environment);

  const auto resumed = find_resume(topology.checkpoint, topology.run.folder);
  const auto state = resumed ? parse_run_state(resumed->state) : RunState{};
  const auto initial_weights = resumed ? std::filesystem::path() : find_initial_weights(topology.checkpoint);
  const auto folder = open_run_folder(topology.run, topology.checkpoint, resumed ? state.step : -1);
  if (resumed) observer->say(concat("resuming after step ", state.step, " from ", resumed->path.string()));

  auto sampling = topology.sampling;
  if (sampling.stop_token_ids.empty()) sampling.stop_token_ids = model->stop_token_ids();
  auto engine = topology.rollout.engine;
  engine.seed = topology.run.seed;
  engine.deterministic = topology.run.deterministic;
  engine.num_threads = topology.rollout.num_threads > 0
                           ? topology.rollout.num_threads
                           : std::max(1, threads / std::max(1, topology.rollout.num_workers));
  if (engine.max_context_length <= 0) engine.max_context_length = topology.learner.max_context_length;
  engine.log_prob_vocab_size = log_prob_vocab_size(*model);
  const auto turns = turn_setup(*model, topology.environment);
  const auto dtype = compute_dtype(topology.rollout.dtype);

  // Readers of weights: every worker of this process, and the evaluator.
  const auto board =
      std::make_shared<WeightBoard>(std::max(1, topology.rollout.num_workers + (topology.evaluation.enable ? 1 : 0)));
  std::shared_ptr<WeightPublisher> publisher;
  if (topology.cluster.listen)
    publisher = std::make_shared<WeightPublisher>(WeightPublisherOptions{
        topology.cluster.bind, topology.cluster.weights_port, milliseconds_of(topology.cluster.lost_after_s)});
  const auto recorder = std::make_shared<RunRecorder>(folder, trace, observer, topology.run.seed);
  recorder->set_time_before(state.time_s);
  const auto limit = milliseconds_of(topology.limits.request_timeout_s);
  const auto stop_evaluation = std::make_shared<std::atomic<bool>>(false);
  const AdmissionOptions admission{topology.async_loop.num_prompts_per_train_step,
                                   topology.async_loop.target_offpolicy_steps, topology.async_loop.window_groups};
  // One more sample a group where the algorithm compares with a greedy one: the last of its ids.
  const bool has_baseline = needs_baseline_sample(topology.learner.algorithm);
  const auto num_samples_per_group = topology.async_loop.num_samples_per_prompt + (has_baseline ? 1 : 0);
  const auto baseline_index = has_baseline ? topology.async_loop.num_samples_per_prompt : -1;
  GroupBufferOptions buffer_options{admission.num_groups_per_step, admission.window,
                                    parse_zero_variance(topology.learner.algorithm.zero_variance),
                                    topology.async_loop.max_refill_rounds, has_baseline};
  std::vector<uint64_t> live;
  for (const auto& one : state.live) live.push_back(one.group);
  // Of the samples that workers held, those that the buffer has meanwhile are done.
  auto [saved_groups, unfinished] = split_groups(resumed ? resumed->groups : std::string());
  const auto finished =
      finished_samples(buffer_options, saved_groups, live, num_samples_per_group, models.reference != nullptr);
  if (const auto slots = AdmissionLedger(admission).capacity(); static_cast<int64_t>(live.size()) > slots)
    throw UsageError(
        concat("the checkpoint holds ", live.size(), " unfinished groups, and this run has ", slots,
               " slots (async_loop.num_prompts_per_train_step * (async_loop.target_offpolicy_steps + 1)): ",
               "resume with at least as many, or start another run from it with ", "checkpoint.initial_load_path"));
  if (!unfinished.empty()) observer->say(concat(unfinished.size(), " samples go on where they were"));

  const auto group_to_worker =
      topology.run.deterministic ? GroupToWorker::kFixed : parse_group_to_worker(topology.rollout.group_to_worker);

  CastList cast;
  cast.num_rollouts = topology.rollout.num_workers;
  cast.needs_every_rollout = group_to_worker == GroupToWorker::kFixed;
  cast.restarts = restart_options(topology.limits);
  cast.observer = observer;
  cast.reward_is_pool = topology.cluster.remote_roles.contains("reward");
  cast.start_buffer = [=, saved_groups = saved_groups](caf::actor_system& system) {
    TokenText text = [model](const std::vector<int32_t>& tokens) { return model->tokenizer()->decode(tokens, false); };
    return spawn_buffer(system, {buffer_options, std::move(text), saved_groups, live});
  };
  if (topology.evaluation.enable) {
    auto engine_all = engine;
    const std::function<bool()> stop_requested = [stop_evaluation] { return stop_evaluation->load(); };
    engine_all.num_threads = threads;
    cast.start_evaluator = [=](caf::actor_system& system) {
      return spawn_evaluator(
          system,
          [=](int64_t) {
            return evaluate_weights(*model, *board, topology.evaluation, engine_all, sampling, turns, topology.rewards,
                                    topology.limits.request_timeout_s, stop_requested);
          },
          true);
    };
  }
  cast.start_director = [=, unfinished = unfinished](caf::actor_system& system, buffer_actor buffer,
                                                     evaluator_actor evaluator, supervisor_actor supervisor) {
    DirectorSetup setup;
    setup.admission = admission;
    setup.work = {group_to_worker, topology.rollout.num_workers, topology.limits.max_attempts};
    setup.num_samples_per_group = num_samples_per_group;
    // No fewer than the buffer judges before it finds that nothing can be trained on.
    setup.max_failed_groups =
        std::max<int64_t>(64, (1 + buffer_options.max_refill_rounds) * admission.num_groups_per_step);
    setup.num_steps = topology.run.steps;
    setup.save_interval = topology.checkpoint.enable ? topology.checkpoint.interval : 0;
    setup.save_at_end = topology.checkpoint.enable;
    setup.evaluate = topology.evaluation.enable;
    setup.evaluation_interval = topology.evaluation.interval;
    setup.keep_best = topology.evaluation.keep_best;
    setup.state = state;
    setup.finished = finished;
    setup.unfinished = unfinished;
    setup.encode = [=](uint64_t id) {
      const auto prompt = prompts->at(id);
      return EncodedPrompt{model->encode(prompt), sample_metadata(prompt)};
    };
    setup.board = board;
    setup.recorder = recorder;
    setup.observer = observer;
    setup.stop_evaluation = [=] { *stop_evaluation = true; };
    setup.limit = limit;
    if (topology.cluster.listen) setup.wait_for_workers = milliseconds_of(topology.cluster.wait_for_workers_s);
    return spawn_director(system, std::move(buffer), std::move(evaluator), std::move(supervisor), std::move(setup));
  };
  auto shard = policy_shard_setup(topology, models, threads, limit, observer);
  if (resumed) shard.resume_from = resumed->path;
  const auto& elsewhere = topology.cluster.remote_roles;
  const auto wait_for_workers = milliseconds_of(topology.cluster.wait_for_workers_s);
  // Whoever stores a graded sample waits for the buffer, or for a reference: for its model and a batch under way, or
  // for one to join and for others in the place of those that fell.
  const auto store_limit = elsewhere.contains("reference")
                               ? limit + 2 * wait_for_workers + RewardPoolSetup().max_attempts * limit
                           : models.reference != nullptr ? 4 * limit
                                                         : limit;
  if (elsewhere.contains("reference"))
    cast.start_reference = [=](caf::actor_system& system, sample_store_actor buffer, supervisor_actor supervisor) {
      RewardPoolSetup pool;
      pool.role = "reference";
      pool.limit = limit;
      pool.store_limit = limit;
      pool.wait_for_graders = wait_for_workers;
      pool.max_asked = ReferenceSetup().max_samples;
      return sample_store_actor(spawn_reward_pool(system, std::move(buffer), std::move(supervisor), pool));
    };
  else
    cast.start_reference = start_reference(topology, models, shard, trace);
  std::map<std::string, std::string> judges;
  if (elsewhere.contains("reference"))
    judges["reference"] = to_json(judge_settings(topology, *models.reference, shard.resume_from)).dump();
  if (elsewhere.contains("critic"))
    judges["critic"] = to_json(judge_settings(topology, *models.critic, shard.resume_from)).dump();
  // Workers that may ask at a time; of those that may join nobody knows how many they will be.
  constexpr int kMostlyJoined = 16;
  const int num_askers = topology.rollout.num_workers + (topology.cluster.listen ? kMostlyJoined : 0);
  // Every worker's questions may stand before this one, and each rule may use up its own limit.
  const double longest_s = longest_score_s(topology.rewards);
  const double score_limit_s = 10 + longest_s * RolloutSetup().max_scores_asked * (num_askers + 1);
  const double grade_limit_s = 10 + longest_s * RewardPoolSetup().max_asked;
  cast.start_reward = [=](caf::actor_system& system, sample_store_actor next,
                          supervisor_actor supervisor) -> reward_actor {
    if (topology.cluster.remote_roles.contains("reward")) {
      RewardPoolSetup pool;
      pool.limit = milliseconds_of(grade_limit_s);
      pool.store_limit = store_limit;
      pool.wait_for_graders = wait_for_workers;
      return spawn_reward_pool(system, std::move(next), std::move(supervisor), pool);
    }
    return spawn_reward(system, std::move(next),
                        {[=] {
                           auto rules = std::make_shared<RewardSet>(topology.rewards);
                           return ScoreFunction([rules](Trajectory& trajectory) { rules->score(trajectory); });
                         },
                         trace, true, num_parallel_scores(topology.rewards)});
  };
  auto score_limit = std::min(limit, milliseconds_of(score_limit_s));
  // A sample may wait for a grader to join, for others in the place of those that fell, and for the samples that were
  // asked about before it.
  if (elsewhere.contains("reward"))
    score_limit = 2 * wait_for_workers + RewardPoolSetup().max_attempts * milliseconds_of(grade_limit_s) +
                  milliseconds_of(longest_s * RolloutSetup().max_scores_asked * num_askers);
  if (models.reference != nullptr) score_limit += store_limit;
  const auto credit =
      engine.max_sequences + static_cast<int>(std::min<int64_t>(num_samples_per_group, engine.max_sequences));
  if (publisher != nullptr)
    add_gate(cast, topology.cluster,
             {topology.run.name,
              {},
              engine,
              sampling,
              baseline_index,
              credit,
              std::chrono::duration<double>(score_limit).count(),
              0,
              dtype == at::kFloat ? "float32" : "bfloat16",
              turns},
             topology.rewards, *model, judges, topology.rollout.num_workers, publisher, observer);
  cast.start_rollout = [=](caf::actor_system& system, int worker, director_actor director, reward_actor reward) {
    RolloutSetup setup;
    setup.make_work = [=](int) { return make_engine_work(model, engine, sampling, baseline_index, turns); };
    setup.board = board;
    setup.trace = trace;
    setup.credit = credit;
    setup.score_limit = score_limit;
    return spawn_rollout(system, worker, std::move(director), std::move(reward), std::move(setup));
  };
  const auto critic = elsewhere.contains("critic") ? nullptr : start_critic(topology, models, shard, trace);
  cast.start_trainer = [=](caf::actor_system& system, batch_source_actor source, run_control_actor control,
                           supervisor_actor supervisor) {
    auto ranks = shard;
    ranks.board = board;
    ranks.publish_dtype = dtype;
    if (publisher != nullptr)
      ranks.on_publish = [publisher](WeightSnapshotPointer snapshot) { publisher->publish(std::move(snapshot)); };
    ranks.initial_weights = initial_weights;
    ranks.record_batches = topology.run.record_batches;
    ranks.first_step = state.step;
    auto setup = trainer_setup(topology.mesh, ranks, trace, observer, limit);
    setup.start_critic = critic;
    if (elsewhere.contains("critic")) setup.wait_for_critic = wait_for_workers;
    setup.first_step = state.step;
    setup.write_model = topology.checkpoint.last_save_in_hf;
    return spawn_trainer(system, std::move(source), std::move(control), std::move(supervisor), std::move(setup));
  };
  auto options = play_options(topology.limits, topology.handle_signals);
  if (publisher != nullptr)
    options.network = NetworkOptions{topology.cluster.heartbeat_s, topology.cluster.lost_after_s};
  return play_and_finish(std::move(cast), std::move(options), recorder, trace, topology.run.folder,
                         topology.metrics.enable_trace);
}

nlohmann::json describe(const RlTopology& topology) {
  check(topology);
  const auto models = open_models(topology);
  const auto& model = *models.policy;
  make_prompt_source(topology.data);
  if (topology.evaluation.enable) make_prompt_source(topology.evaluation.data);
  auto memory = describe_memory(model.config(), topology.mesh, topology.checkpoint);
  const auto& elsewhere = topology.cluster.remote_roles;
  if (models.reference != nullptr && !elsewhere.contains("reference"))
    memory["reference weights"] = models.reference->config().num_parameters() * 4;
  if (models.critic != nullptr && !elsewhere.contains("critic"))
    memory["critic"] = models.critic->config().num_parameters() * 16;
  const auto bytes_per_value = compute_dtype(topology.rollout.dtype) == at::kBFloat16 ? 2 : 4;
  memory["rollout weights"] =
      model.config().num_parameters() * bytes_per_value * 2;  // the newest and the one being replaced
  const auto& engine = topology.rollout.engine;
  const auto& c = model.config();
  const auto cache_bytes = engine.kv_cache_mib > 0
                               ? engine.kv_cache_mib << 20
                               : engine.max_sequences * engine.max_context_length *
                                     cache_block_bytes(c, compute_dtype(topology.rollout.dtype), /*block_tokens=*/1);
  memory["rollout KV caches"] =
      topology.rollout.num_workers * (cache_bytes + engine.max_sequences * recurrent_state_bytes(c));
  const auto place = [&](const std::string& role) {
    return topology.cluster.remote_roles.contains(role) ? concat(role, ", in workers of role ", role) : role;
  };
  return {{"roles",
           {{"director", 1},
            {"rollout", topology.rollout.num_workers},
            {place("reward"), 1},
            {"buffer", 1},
            {"trainer", 1},
            {"shard", topology.mesh.num_ranks()},
            {place("reference"), needs_reference(topology.learner.algorithm) ? 1 : 0},
            {place("critic"), needs_critic(topology.learner.algorithm) ? 1 : 0},
            {"evaluator", topology.evaluation.enable ? 1 : 0},
            {"supervisor", 1},
            {"gate for other processes", topology.cluster.listen ? 1 : 0}}},
          {"parameters", c.num_parameters()},
          {"algorithm", topology.learner.algorithm.name},
          {"staleness_bound",
           AdmissionLedger({topology.async_loop.num_prompts_per_train_step, topology.async_loop.target_offpolicy_steps,
                            topology.async_loop.window_groups})
               .staleness_bound()},
          {"memory_bytes", std::move(memory)}};
}

}  // namespace troupe
