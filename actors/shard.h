// The shard actor: one rank of a trainer, a critic or a reference on its own thread. Blocks in collectives, therefore
// detached.
#pragma once

#include "actors/interfaces.h"
#include "actors/train_batch.h"
#include "actors/trace.h"

namespace troupe {

/// Under which name a rank is seen to work; ranks above 0 append their number.
struct ShardTrace {
  std::string role = "trainer";
  std::shared_ptr<Trace> trace;
};

shard_actor spawn_shard(caf::actor_system& system, int rank, ShardWorkFactory make_work, ShardTrace trace,
                        bool detached);

}  // namespace troupe
