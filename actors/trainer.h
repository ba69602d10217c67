// The trainer actor: owns shards, asks for batches, reports each step to the run control and does what it decides.
// The same for pre-training and RL: they differ by what the shards are given and by who gives it.
//
//   load ──> decide ──> [write best] ──> [save] ──> [validate] ──> batch ──> train ──> publish ──> trained ──> decide
//   ...
//                                          └──────> stop: [write model] ──> finished (supervisor)
//
// A shard that fails, dies or does not answer ends the trainer at once. Where no batch comes the shards are sound: the
// trainer tells the supervisor why, asks the run control to wind down, and a checkpoint keeps what was trained.
#pragma once

#include "actors/interfaces.h"
#include "actors/run_recorder.h"
#include "actors/train_batch.h"
#include "actors/trace.h"

namespace troupe {

struct TrainerSetup {
  int num_ranks = 1;
  ShardWorkFactory make_work;
  std::function<shard_actor(caf::actor_system&, int rank)> start_shard;  // empty: spawn_shard with make_work
  std::shared_ptr<Trace> trace;
  std::shared_ptr<ObserverGate> observer;
  int64_t first_step = 0;   // steps done before (resume)
  bool write_model = true;  // <folder>/model at the end
  LocalBatch validation;    // pre-training: rows of the validation loss
  std::chrono::milliseconds limit{600'000};
  bool detached = true;  // shards on their own threads
};

trainer_actor spawn_trainer(caf::actor_system& system, batch_source_actor source, run_control_actor control,
                            supervisor_actor supervisor, TrainerSetup setup);

}  // namespace troupe
