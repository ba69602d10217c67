// From trajectories to packed rows, dealt fairly to ranks. A group's prompt is computed once: it becomes a root segment
// and each completion a child of it (models/layout.h).
//
//   row     [ prompt A (root) | completion A0 | completion A1 | prompt+completion B0 (root) ]
//   trained  the first token of A0 is predicted by the last token of prompt A: `predictors` names that row
//
// Every trained token carries its sample and index, so nothing depends on the order in which samples are packed (B017).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/trajectory.h"
#include "models/layout.h"

namespace troupe {

/// One packed row: a micro-batch of one rank. N wanted tokens, flat, those of a sample side by side in token order.
struct PackedRow {
  std::vector<int32_t> tokens;
  PackedLayout layout;
  std::vector<int64_t> predictors;     // [N] row of `tokens` whose hidden state predicts the token (the one before it)
  std::vector<int32_t> targets;        // [N] the token itself
  std::vector<int64_t> samples;        // [N] index of its trajectory in the batch
  std::vector<int32_t> token_indices;  // [N] its index in the trajectory
  bool is_filler = false;              // stands in where another rank has one row more; counts for nothing
};

struct PackingOptions {
  int num_ranks = 1;
  int64_t num_tokens_per_row = 4096;  // a single longer sample still gets a row of its own
  bool share_prompts = true;
  bool keep_groups = false;  // a group stays in one row, whatever its size
};

/// Rows of every rank: [rank][micro-batch], the same number for each. `wanted[i]` marks the tokens of batch[i] whose
/// log-prob is asked ([L]; index 0 has no predictor and must be 0); samples without one are left out, and tokens after
/// the last wanted one are not computed. Longest first onto the rank with the least tokens; a function of its arguments
/// alone, so that every rank makes the same plan. Empty where nothing is wanted.
std::vector<std::vector<PackedRow>> pack_trajectories(std::span<const Trajectory> batch,
                                                      std::span<const std::vector<uint8_t>> wanted,
                                                      const PackingOptions& options);

/// Tokens in rows, fillers included or not.
int64_t num_row_tokens(const std::vector<PackedRow>& rows, bool with_fillers);

}  // namespace troupe
