// What differs between the architectures of GGUF files: names of tensors, how they are stored, and what of the
// configuration the metadata leaves to the reader.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/formats/gguf_header.h"

namespace troupe {

struct GgufArchitecture {
  std::string name;           // general.architecture
  std::string model_type;     // of config.json
  bool pairs_heads = false;   // rows of q and k are stored in rotated pairs (stored_rotary_rows)
  double norm_offset = 0;     // norms are stored with this added
  bool norms_behind = false;  // norms behind attention and MLP too, with names of their own
  bool says_attention_bias = true, says_mlp_bias = false;  // whether config.json has a key for what tensors are there

  /// Adds to config.json what this architecture's metadata and nothing else say.
  void (*add_to_config)(const GgufHeader& header, nlohmann::json& config) = nullptr;

  /// Hugging Face name of a tensor, "" where it has none.
  std::string hugging_face_name(const std::string& name) const;
};

/// Throws Error naming the file and the architectures that are known.
const GgufArchitecture& find_gguf_architecture(const GgufHeader& header);

}  // namespace troupe
