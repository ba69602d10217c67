// A run's checkpoints: what the learner and the run's control put into one (protocol "Checkpoint", invariant 9).
// parallel/checkpoint.h writes and reads it.
//
//   state.json   the run control's state (step, version, data cursor, outstanding work, ...) and, as "learner", that of
//                the learner
//   groups.bin   RL: the groups in flight and complete
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "actors/model_source.h"
#include "parallel/checkpoint.h"
#include "training/learner.h"

namespace troupe {

struct CheckpointWrite {
  std::filesystem::path folder;  // <run>/checkpoints
  int64_t step = 0;
  std::string state_json, groups;
  int64_t keep_latest_k = 3;
};

/// Every rank of the first replica calls; `writer` is over its shards. Errors as CheckpointWriter::save.
void save_checkpoint(const CheckpointWrite& write, Learner& learner, const RankGroups& groups,
                     CheckpointWriter& writer);
/// Fills this rank's part of the parameters alone. Throws Error naming what does not fit.
void load_checkpoint_weights(const std::filesystem::path& checkpoint, Learner& learner);
/// Fills this rank's part of parameters and optimizer state, whatever number of ranks wrote them, and the learner's
/// state. Throws Error naming what does not fit.
void load_checkpoint(const std::filesystem::path& checkpoint, Learner& learner);

/// Writes the weights as a Hugging Face folder of the source's form, in place of the old one once it is whole. Every
/// rank of the first replica calls. `export_dtype`: "float32" "bfloat16" "float16".
void write_model_folder(Learner& learner, const RankGroups& groups, const ModelSource& source,
                        const std::filesystem::path& folder, const std::string& export_dtype);

struct FoundCheckpoint {
  std::filesystem::path path;
  nlohmann::json state;
  std::string groups;
};
/// The newest whole checkpoint in `folder` (<run>/checkpoints); warns of every other newer one by name and reason.
std::optional<FoundCheckpoint> find_checkpoint(const std::filesystem::path& folder);
/// Checks manifest and hashes of one checkpoint and reads its state. Throws Error naming what is wrong.
FoundCheckpoint read_checkpoint(const std::filesystem::path& checkpoint);

}  // namespace troupe
