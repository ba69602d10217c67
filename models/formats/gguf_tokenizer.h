// The tokenizer inside a GGUF file, in the forms that a Hugging Face folder has. No torch.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "models/formats/gguf_header.h"

namespace troupe {

/// tokenizer.json from the metadata `tokenizer.ggml.*`; "" where there is none. Throws Error on kinds and pre-tokenizer
/// names that are not known (it lists the known ones).
std::string gguf_tokenizer_json(const GgufHeader& header);
/// bos_token, eos_token, ..., chat_template and add_bos_token, as a tokenizer_config.json has them.
nlohmann::json gguf_tokenizer_config(const GgufHeader& header);

}  // namespace troupe
