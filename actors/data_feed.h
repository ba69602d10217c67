// The data actor of runs without generation: batch source and run control in one; there is no other actor beside
// supervisor and trainer.
#pragma once

#include "actors/interfaces.h"
#include "actors/run_recorder.h"
#include "actors/train_batch.h"
#include "training/text_source.h"

namespace troupe {

using data_actor = run_control_actor::extend<
    // The batch of this train step.
    caf::replies_to<atom::batch, int64_t>::with<LocalBatch>>;

/// Where batches come from, with a position that a checkpoint keeps.
struct BatchFeed {
  std::function<void(TrainBatch& batch)> fill;  // the next batch, moving on
  std::function<TextCursor()> cursor;
};

struct DataSetup {
  BatchFeed feed;
  int64_t first_step = 0, num_steps = 1;
  int64_t save_interval = 0;
  bool save_at_end = false;
  int64_t validation_interval = 0;
  bool validate = false;
  std::shared_ptr<RunRecorder> recorder;
};

data_actor spawn_data(caf::actor_system& system, DataSetup setup);

}  // namespace troupe
