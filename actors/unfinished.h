// Samples on their way when a checkpoint is written: what workers hold of them, so that a resumed run goes on where
// they were. They stand behind the buffer's half of groups.bin.
#pragma once

#include <functional>
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

/// Puts together what several workers hold: `next` gets it once nobody is missing. Begins with one missing, so that
/// whoever asks them can say that all are asked.
class UnfinishedGather {
 public:
  UnfinishedGather(UnfinishedSamples samples, std::function<void(UnfinishedSamples)> next)
      : samples_(std::move(samples)), next_(std::move(next)) {}
  void one_more() { ++num_missing_; }
  /// What one of them answered; damaged bytes are logged under its name and left out.
  void add(const std::string& who, const std::string& bytes);
  /// One of them has nothing to add, or all are asked.
  void one_less();

 private:
  size_t num_missing_ = 1;
  UnfinishedSamples samples_;
  std::function<void(UnfinishedSamples)> next_;
};

}  // namespace troupe
