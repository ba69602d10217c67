// The trainer actor: owns shards, asks for batches, reports each step to the run control and does what it decides.
// The same for pre-training and RL: they differ by what the shards are given and by who gives it.
//
//   load ──> decide ──> [write best] ──> [save] ──> [validate] ──> batch ──> train ──> publish ──> trained ──> decide
//   ...
//                                          └──────> stop: [write model] ──> finished (supervisor)
//
// Where the algorithm needs values: batch ──> critic: values ──> train, here and at the critic at the same time. The
// critic saves and writes its model before the shards do.
//
// A critic or shard that fails, dies or does not answer ends the trainer at once. Where no batch comes the shards are
// sound: the trainer tells the supervisor why, asks the run control to wind down, and a checkpoint keeps what was
// trained.
#pragma once

#include "actors/interfaces.h"
#include "actors/run_recorder.h"
#include "actors/shard_group.h"

namespace troupe {

struct TrainerSetup {
  ShardGroupSetup shards;
  std::function<critic_actor(caf::actor_system&)> start_critic;  // empty: none here
  /// Above 0: the critic is another process's, and is waited for so long.
  std::chrono::milliseconds wait_for_critic{0};
  std::shared_ptr<ObserverGate> observer;
  int64_t first_step = 0;   // steps done before (resume)
  bool write_model = true;  // <folder>/model at the end
  LocalBatch validation;    // pre-training: rows of the validation loss
  std::chrono::milliseconds limit{600'000};
};

trainer_actor spawn_trainer(caf::actor_system& system, batch_source_actor source, run_control_actor control,
                            supervisor_actor supervisor, TrainerSetup setup);

}  // namespace troupe
