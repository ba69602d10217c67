#include "actors/run_setup.h"

#include "actors/reporter.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "parallel/checkpoint_folder.h"

namespace troupe {

namespace {

/// One checkpoint, the newest of a folder of them, or the newest of a run.
FoundCheckpoint read_named(const char* key, std::filesystem::path folder) {
  if (!folder.has_filename()) folder = folder.parent_path();  // "runs/a/checkpoints/step-50/"
  if (std::filesystem::exists(folder / "manifest.json")) return read_checkpoint(folder);
  auto found = find_checkpoint(std::filesystem::exists(folder / "checkpoints") ? folder / "checkpoints" : folder);
  require(found.has_value(), key, " = \"", folder.string(), "\": no whole checkpoint there");
  return std::move(*found);
}

}  // namespace

std::optional<FoundCheckpoint> find_resume(const CheckpointOptions& checkpoint, const std::string& run_folder) {
  if (checkpoint.resume != "never" && checkpoint.resume != "auto")
    return read_named("checkpoint.resume", checkpoint.resume);
  if (checkpoint.resume == "auto")
    if (auto found = find_checkpoint(std::filesystem::path(run_folder) / "checkpoints")) return found;
  if (checkpoint.initial_load_path.empty() || checkpoint.initial_load_model_only) return std::nullopt;
  return read_named("checkpoint.initial_load_path", checkpoint.initial_load_path);
}

std::filesystem::path find_initial_weights(const CheckpointOptions& checkpoint) {
  if (checkpoint.initial_load_path.empty()) return {};
  return read_named("checkpoint.initial_load_path", checkpoint.initial_load_path).path;
}

namespace {

/// Found out before the first step, not when the first checkpoint has nowhere to go.
void check_takes_folders(const std::filesystem::path& folder) {
  const auto trial = folder / "trial";
  make_folders(trial);
  std::error_code ignored;
  std::filesystem::remove(trial, ignored);
}

}  // namespace

std::shared_ptr<RunFolder> open_run_folder(const RunOptions& run, const CheckpointOptions& checkpoint,
                                           int64_t last_step) {
  auto folder = std::make_shared<RunFolder>(run.folder, last_step);
  if (checkpoint.enable) check_takes_folders(folder->checkpoints());
  if (!run.resolved_config.empty()) write_file_atomically(folder->path() / "config.toml", run.resolved_config);
  log::add_file((folder->path() / "log.txt").string());
  set_aside_checkpoints(folder->checkpoints(), last_step);
  set_aside_checkpoints(folder->path() / "critic" / "checkpoints", last_step);
  return folder;
}

void refuse_own_model(const char* key, const std::string& path, const std::string& run_folder) {
  if (path.empty()) return;
  const auto given = std::filesystem::weakly_canonical(path);
  const auto run = std::filesystem::weakly_canonical(run_folder);
  for (const auto& own : {run / "model", run / "best", run / "critic" / "model"})
    if (given == own || given.parent_path() == own)
      throw UsageError(concat(
          key, " = ", path, " is a folder that this run writes its own model to; give the run another ", "run.folder"));
}

std::chrono::milliseconds milliseconds_of(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

std::shared_ptr<const ModelSource> open_reference(const ModelOptions& options, const ModelOptions& policy_options,
                                                  const std::shared_ptr<const ModelSource>& policy, uint64_t seed) {
  if (options.path.empty() || options.path == policy_options.path) return policy;
  auto reference = std::make_shared<const ModelSource>(options, seed);
  reference->check_weights();
  require(reference->config().vocab_size == policy->config().vocab_size, "reference.path = ", options.path,
          ": its vocabulary of ", reference->config().vocab_size, " tokens is not the ", policy->config().vocab_size,
          " of model.path");
  return reference;
}

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "localhost" || address == "::1";
}

RestartOptions restart_options(const LimitOptions& limits) {
  return {limits.num_restarts, milliseconds_of(limits.restart_window_s), milliseconds_of(limits.first_restart_pause_s),
          std::chrono::milliseconds(30'000)};
}

PlayOptions play_options(const LimitOptions& limits, bool handle_signals) {
  PlayOptions options;
  options.handle_signals = handle_signals;
  options.shutdown_grace = milliseconds_of(limits.shutdown_grace_s);
  return options;
}

TrainerSetup trainer_setup(const MeshDegrees& mesh, LearnerShardSetup shard, std::shared_ptr<Trace> trace,
                           std::shared_ptr<ObserverGate> observer, std::chrono::milliseconds limit) {
  TrainerSetup trainer;
  trainer.shards.num_ranks = mesh.num_ranks();
  trainer.shards.make_work = [shard = std::move(shard)](int rank) { return make_learner_shard(rank, shard); };
  trainer.shards.trace = std::move(trace);
  trainer.shards.limit = limit;
  trainer.observer = std::move(observer);
  trainer.limit = limit;
  return trainer;
}

void cast_data_and_trainer(CastList& cast, DataSetup data, TrainerSetup trainer) {
  cast.start_data = [data = std::move(data)](caf::actor_system& system) {
    const auto actor = spawn_data(system, data);
    return std::pair<batch_source_actor, run_control_actor>(actor, actor);
  };
  cast.start_trainer = [trainer = std::move(trainer)](caf::actor_system& system, batch_source_actor batches,
                                                      run_control_actor control, supervisor_actor supervisor) {
    return spawn_trainer(system, std::move(batches), std::move(control), std::move(supervisor), trainer);
  };
}

int play_and_finish(CastList cast, PlayOptions options, const std::shared_ptr<RunRecorder>& recorder,
                    const std::shared_ptr<Trace>& trace, const std::filesystem::path& run_folder, bool write_trace) {
  const auto status = run_folder / "status.json";
  open_status(status);  // what an earlier life of the run left there says that it is over
  cast.start_reporter = [=](caf::actor_system& system, run_control_actor control) {
    return spawn_reporter(system, std::move(control), {status, trace});
  };
  const auto finish = [=, observer = cast.observer](const std::string& how) {
    recorder->sync();
    close_status(status, how);
    if (write_trace) trace->write(run_folder / "trace.json");
    observer->call([](RunObserver& listener) { listener.on_end(); });
  };
  options.on_forced_end = [=] { finish("over: ended by force"); };
  const auto code = play(std::move(cast), options);
  finish(code == 0 ? "over: done" : code == 130 ? "over: interrupted" : "over: failed");
  return code;
}

std::shared_ptr<std::vector<RankGroups>> make_groups(const MeshDegrees& mesh, std::chrono::milliseconds limit) {
  return std::make_shared<std::vector<RankGroups>>(make_thread_groups(mesh, limit));
}

LearnerShardSetup shard_setup(const LearnerOptions& learner, const RunOptions& run, const CheckpointOptions& checkpoint,
                              const MeshDegrees& mesh, int threads, std::chrono::milliseconds limit) {
  LearnerShardSetup setup;
  setup.options = learner;
  setup.options.seed = run.seed;
  setup.options.deterministic = run.deterministic;
  // The trainer's request limit comes first, so that a stuck rank is named by it.
  setup.groups = make_groups(mesh, limit);
  setup.folder = run.folder;
  setup.export_dtype = checkpoint.export_dtype;
  setup.keep_latest_k = checkpoint.keep_latest_k;
  setup.save_async = checkpoint.is_async;
  setup.num_threads = std::max(1, threads / mesh.num_ranks());
  setup.limit = limit;
  return setup;
}

nlohmann::json describe_memory(const ModelConfig& config, const MeshDegrees& mesh,
                               const CheckpointOptions& checkpoint) {
  const auto parameters = config.num_parameters(), held = parameters * mesh.replicate;
  int64_t of_experts = 0;
  for (const auto& spec : parameter_specs(config))
    if (spec.is_of_experts()) of_experts += c10::multiply_integers(spec.shape);
  const int64_t num_gathered = (parameters - of_experts) / mesh.tensor + of_experts / mesh.expert;
  nlohmann::json memory{{"trainer parameters", held * 4},
                        {"trainer gradients", held * 4},
                        {"optimizer state", held * 8},
                        {"gathered compute weights", num_gathered * 2 * mesh.num_ranks() / mesh.pipeline}};
  if (checkpoint.enable && checkpoint.is_async) memory["checkpoint snapshot, while it is written"] = parameters * 12;
  return memory;
}

}  // namespace troupe
