// A Hugging Face folder as a checkpoint: config.json, safetensors (one file or shards with an index), text files.
#pragma once

#include "models/formats/checkpoint_reader.h"

namespace troupe {

std::unique_ptr<CheckpointReader> open_hf_folder(const std::filesystem::path& folder);

}  // namespace troupe
