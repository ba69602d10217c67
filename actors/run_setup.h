// What run_rl and run_pretrain share: run folder, resume, restart patience, the shards' setup.
#pragma once

#include "actors/data_feed.h"
#include "actors/learner_shard.h"
#include "actors/play.h"
#include "actors/restart_policy.h"
#include "actors/run_checkpoint.h"
#include "actors/topology.h"
#include "actors/trainer.h"
#include "base/run_folder.h"

namespace troupe {

/// Where to resume by checkpoint.resume, or by checkpoint.initial_load_path where the run has no checkpoint yet and not
/// only weights are wanted; throws Error where a folder that was named is not a whole checkpoint.
std::optional<FoundCheckpoint> find_resume(const CheckpointOptions& checkpoint, const std::string& run_folder);
/// The checkpoint whose weights a fresh run starts from; "" where it starts from model.path. Throws as find_resume.
std::filesystem::path find_initial_weights(const CheckpointOptions& checkpoint);
/// Creates it, cuts the records and sets aside the checkpoints after `last_step`, opens log.txt and writes config.toml.
std::shared_ptr<RunFolder> open_run_folder(const RunOptions& run, const CheckpointOptions& checkpoint,
                                           int64_t last_step);
/// UsageError where `path` lies in a folder that the run would replace with its own model.
void refuse_own_model(const char* key, const std::string& path, const std::string& run_folder);
/// The reference of `options`: the policy's own weights where it names no other path. Throws Error where its vocabulary
/// is another.
std::shared_ptr<const ModelSource> open_reference(const ModelOptions& options, const ModelOptions& policy_options,
                                                  const std::shared_ptr<const ModelSource>& policy, uint64_t seed);
RestartOptions restart_options(const LimitOptions& limits);
/// Seconds to the duration that requests take.
std::chrono::milliseconds milliseconds_of(double seconds);
PlayOptions play_options(const LimitOptions& limits, bool handle_signals);
/// What the trainer of every run is given: ranks that each make a learner's shard, and who looks on.
TrainerSetup trainer_setup(const MeshDegrees& mesh, LearnerShardSetup shard, std::shared_ptr<Trace> trace,
                           std::shared_ptr<ObserverGate> observer, std::chrono::milliseconds limit);
/// The two actors of a run without generation: the data actor, batch source and run control in one, and the trainer.
void cast_data_and_trainer(CastList& cast, DataSetup data, TrainerSetup trainer);
/// Plays, then completes the run folder (records, trace.json where it is wanted) and tells the observer, also where the
/// process has to be ended with actors still in it. Returns the exit code.
int play_and_finish(CastList cast, PlayOptions options, const std::shared_ptr<RunRecorder>& recorder,
                    const std::shared_ptr<Trace>& trace, const std::filesystem::path& run_folder, bool write_trace);
/// Ranks as threads of this process.
std::shared_ptr<std::vector<RankGroups>> make_groups(const MeshDegrees& mesh, std::chrono::milliseconds limit);
LearnerShardSetup shard_setup(const LearnerOptions& learner, const RunOptions& run, const CheckpointOptions& checkpoint,
                              const MeshDegrees& mesh, int threads, std::chrono::milliseconds limit);
/// Bytes of the trainer's parts.
nlohmann::json describe_memory(const ModelConfig& config, const MeshDegrees& mesh, const CheckpointOptions& checkpoint);

}  // namespace troupe
