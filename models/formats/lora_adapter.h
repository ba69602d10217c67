// A PEFT LoRA adapter as a checkpoint: its base model with the adapter merged into every weight that is read (Hu et al.
// 2021).
#pragma once

#include "models/formats/checkpoint_reader.h"

namespace troupe {

/// `folder` holds adapter_config.json and adapter_model.safetensors; the base is found by base_model_name_or_path,
/// relative to the folder. Throws Error naming the key (a kind of adapter that is not plain LoRA), the tensor, or the
/// base that is not there.
std::unique_ptr<CheckpointReader> open_lora_adapter(const std::filesystem::path& folder);

}  // namespace troupe
