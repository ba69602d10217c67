// A GGUF file as a checkpoint: configuration from its metadata, names and row order as in the Hugging Face folder.
#pragma once

#include "models/formats/checkpoint_reader.h"

namespace troupe {

/// Architectures llama, qwen2, qwen3, gemma3 (gguf_architecture.h). Of a split model ("x-00001-of-00003.gguf") every
/// part is opened, whichever `path` names. Throws Error naming the file and what in it is missing or not supported.
std::unique_ptr<CheckpointReader> open_gguf(const std::filesystem::path& path);

/// The first part of the split model that `path` belongs to; `path` itself where its name is not one of a part.
std::filesystem::path first_gguf_part(const std::filesystem::path& path);

/// Row order of q and k in a llama GGUF: each head stores row i of its first half, then row i of its second half, so
/// that neighbours rotate together; Hugging Face keeps the halves apart. Gives the stored row of every Hugging Face
/// row.
std::vector<int64_t> stored_rotary_rows(int64_t num_heads, int64_t head_dim);

}  // namespace troupe
