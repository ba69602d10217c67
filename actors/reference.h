// The reference actor: the frozen model that a KL is measured against. It stands between the reward and the buffer, so
// that samples are judged while others are generated and the trainer works:
//
//   reward ──store──> reference ──store──> buffer
//     ^                   └──judge──> its ranks: all that wait, up to a bound, in one go
//     └── answer of the buffer
//
// It keeps nothing but the samples under way, whose askers ask again: a fallen reference is loaded anew.
#pragma once

#include "actors/shard_group.h"

namespace troupe {

struct ReferenceSetup {
  ShardGroupSetup shards;
  int max_samples = 64;  // judged in one go; 1: numbers do not depend on who waits beside whom
};

/// `next` takes the judged samples.
sample_store_actor spawn_reference(caf::actor_system& system, sample_store_actor next, ReferenceSetup setup);
/// Its half that may be in another process (reward_pool.h): it answers with the judged sample. `loaded` is called on
/// its thread once the model is there.
grader_actor spawn_reference_grader(caf::actor_system& system, ReferenceSetup setup, std::function<void()> loaded);

}  // namespace troupe
