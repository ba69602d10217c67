// The critic actor: owns the ranks of the value model, as the trainer owns the policy's. It is asked by the trainer
// alone, one thing after the other:
//
//   load ──> [ values of a batch ──> update towards its returns ──> [save] ] ... ──> [write model]
//
// The batch stays here between its values and the update. A rank that fails, dies or does not answer ends the critic,
// and with it the trainer.
#pragma once

#include "actors/shard_group.h"

namespace troupe {

critic_actor spawn_critic(caf::actor_system& system, ShardGroupSetup shards);

}  // namespace troupe
