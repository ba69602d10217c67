// The batches that a run trained on, kept for a replay: <run folder>/batches/step-N.bin holds the places and every
// trajectory of train step N (run.record_batches). A step that a resumed run makes again replaces its file.
#pragma once

#include <filesystem>

#include "actors/train_batch.h"

namespace troupe {

std::filesystem::path batch_path(const std::filesystem::path& run_folder, int64_t step);
/// Complete or absent. Only of RL: batches of text are read anew from the data.
void write_batch(const std::filesystem::path& run_folder, const TrainBatch& batch);
/// Throws Error naming the file that is missing, broken or of another step.
TrainBatch read_batch(const std::filesystem::path& run_folder, int64_t step);
/// The last step N such that all of 1..N are there; 0 where there is none.
int64_t last_recorded_step(const std::filesystem::path& run_folder);

}  // namespace troupe
