// Samples that one engine began and another one ends: what is told of a sequence under way, and how it is gone on with.
#pragma once

#include "rollout/scheduler.h"

namespace troupe {

/// True where request.so_far can be ended by an engine of these options. `version`: of its weights; -1 where it has
/// none, or other ones wait.
bool can_go_on(const GenerationRequest& request, const EngineOptions& options, int64_t vocab_size, int64_t version);
/// Fills the sequence with what was made before; `so_far` is used up. The tokenizer is needed for stop strings.
void go_on(Trajectory& so_far, const SamplingOptions& sampling, const Tokenizer* tokenizer, Sequence& sequence);
/// The sample as it stands, turns before this one included; its finish reason is kError.
Trajectory describe(const Sequence& sequence);

}  // namespace troupe
