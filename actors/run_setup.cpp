#include "actors/run_setup.h"

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"

namespace troupe {

std::optional<FoundCheckpoint> find_resume(const CheckpointOptions& checkpoint, const std::string& run_folder) {
  if (checkpoint.resume == "never") return std::nullopt;
  if (checkpoint.resume == "auto") return find_checkpoint(std::filesystem::path(run_folder) / "checkpoints");
  const std::filesystem::path folder = checkpoint.resume;
  if (std::filesystem::exists(folder / "manifest.json")) return read_checkpoint(folder);
  auto found = find_checkpoint(std::filesystem::exists(folder / "checkpoints") ? folder / "checkpoints" : folder);
  require(found.has_value(), "checkpoint.resume = \"", checkpoint.resume, "\": no whole checkpoint there");
  return found;
}

std::shared_ptr<RunFolder> open_run_folder(const RunOptions& run, int64_t last_step) {
  auto folder = std::make_shared<RunFolder>(run.folder, last_step);
  if (!run.resolved_config.empty()) write_file_atomically(folder->path() / "config.toml", run.resolved_config);
  log::add_file((folder->path() / "log.txt").string());
  return folder;
}

std::chrono::milliseconds milliseconds_of(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
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

LearnerShardSetup shard_setup(const LearnerOptions& learner, const RunOptions& run, const CheckpointOptions& checkpoint,
                              int num_ranks, int threads, std::chrono::milliseconds limit) {
  LearnerShardSetup setup;
  setup.options = learner;
  setup.options.seed = run.seed;
  setup.options.deterministic = run.deterministic;
  // The trainer's request limit comes first, so that a stuck rank is named by it.
  setup.collectives =
      std::make_shared<std::vector<std::unique_ptr<Collectives>>>(make_thread_collectives(num_ranks, limit));
  setup.folder = run.folder;
  setup.export_dtype = checkpoint.export_dtype;
  setup.keep_latest_k = checkpoint.keep_latest_k;
  setup.num_threads = std::max(1, threads / num_ranks);
  setup.limit = limit;
  return setup;
}

nlohmann::json describe_memory(const ModelConfig& config, int num_ranks) {
  const auto parameters = config.num_parameters();
  return {{"trainer parameters", parameters * 4},
          {"trainer gradients", parameters * 4},
          {"optimizer state", parameters * 8},
          {"gathered compute weights", parameters * 2 * num_ranks}};
}

}  // namespace troupe
