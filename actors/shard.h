// The shard actor: one rank of a trainer on its own thread. Blocks in collectives, therefore detached.
#pragma once

#include "actors/interfaces.h"
#include "actors/train_batch.h"
#include "actors/trace.h"

namespace troupe {

shard_actor spawn_shard(caf::actor_system& system, int rank, ShardWorkFactory make_work, std::shared_ptr<Trace> trace,
                        bool detached);

}  // namespace troupe
