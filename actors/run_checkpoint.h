// Checkpoints of a run (protocol "Checkpoint", invariant 9): the learner's parameters and optimizer state as global
// slices, state.json, groups.bin, and last of all manifest.json. Any number of ranks loads what any number wrote.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "training/learner.h"

namespace troupe {

struct CheckpointWrite {
  std::filesystem::path folder;  // <run>/checkpoints
  int64_t step = 0;
  std::string state_json, groups;
  int64_t keep_latest_k = 3;
};

/// Every rank calls; the folder exists under its name once this returns. Errors of one rank reach all.
void save_checkpoint(const CheckpointWrite& write, Learner& learner, Collectives& collectives);
/// Fills this rank's part of parameters and optimizer state, and the step.
void load_checkpoint(const std::filesystem::path& checkpoint, Learner& learner);

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
