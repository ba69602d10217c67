// One rank's work with the models beside the policy: a critic, which learns values, and a frozen reference. What their
// shard actors drive.
#pragma once

#include "actors/learner_shard.h"

namespace troupe {

/// Of `setup`: model (one with one score), options, groups, folder (<run>/critic), resume_from (its own checkpoint),
/// export_dtype, keep_latest_k, threads, limit.
std::unique_ptr<ShardWork> make_critic_shard(int rank, const LearnerShardSetup& setup);
/// Of `setup`: model, options, groups, threads.
std::unique_ptr<ShardWork> make_reference_shard(int rank, const LearnerShardSetup& setup);

}  // namespace troupe
