// Samples on their way when a checkpoint is written: what workers hold of them, so that a resumed run goes on where
// they were. They stand behind the buffer's half of groups.bin.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/trajectory.h"

namespace troupe {

/// A sample whose generation has not ended carries FinishReason::kError until it has.
inline bool is_unfinished(const Trajectory& trajectory) { return trajectory.finish_reason == FinishReason::kError; }

/// Packed trajectories by sample id.
using UnfinishedSamples = std::map<uint64_t, std::string>;
/// One worker's, for the wire.
std::string pack_unfinished(const UnfinishedSamples& samples);
/// No bytes are no samples. Throws Error on bytes that are not whole.
UnfinishedSamples unpack_unfinished(const std::string& bytes);

/// groups.bin of a checkpoint: the buffer's half, and the samples that workers held.
std::string join_groups(std::string buffer, const UnfinishedSamples& unfinished);
/// Both of them again; checkpoints without the second half have none. Throws Error on bytes that are not whole.
std::pair<std::string, UnfinishedSamples> split_groups(std::string groups);

}  // namespace troupe
