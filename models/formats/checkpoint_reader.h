// Opening what a user brings: a Hugging Face folder or a GGUF file, behind one interface.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "models/config.h"
#include "models/weights.h"

namespace troupe {

struct TensorInfo {
  std::vector<int64_t> shape;  // row-major, as Hugging Face has it
  std::string dtype;           // "F32", "BF16", ... as stored
  bool is_float = true;        // or packed floats; false where it holds integers, truth values, ...
};

/// A model on disk. Tensors are named as in the Hugging Face checkpoint whatever the format; q/k permutation of GGUF
/// undone.
class CheckpointReader {
 public:
  virtual ~CheckpointReader() = default;
  virtual const ModelConfig& config() const = 0;
  virtual const std::map<std::string, TensorInfo>& tensors() const = 0;
  /// Reads (and dequantises) one tensor into `dtype`. Throws Error naming tensor and file.
  virtual Tensor read(const std::string& name, at::ScalarType dtype) const = 0;
  /// tokenizer.json text (for GGUF: made from its metadata), "" where there is none.
  virtual std::string tokenizer_json() const = 0;
  /// Chat template source, "" where there is none.
  virtual std::string chat_template() const = 0;
  /// tokenizer_config.json as far as the chat template needs it (bos_token, eos_token, ... as plain strings).
  virtual nlohmann::json tokenizer_config() const = 0;
  /// What else belongs to the text side, by file name, ready to be written into a Hugging Face folder (tokenizer.json,
  /// tokenizer_config.json, chat_template.jinja, generation_config.json, ...).
  virtual std::map<std::string, std::string> text_files() const = 0;
  /// Where the model lies, for messages.
  virtual std::filesystem::path path() const = 0;
};

/// Opens a Hugging Face folder (model.safetensors, or shards with model.safetensors.index.json), a GGUF file (of a
/// split one any part), or a folder that holds exactly one GGUF model. Throws Error: not there, not a model, unknown
/// family, truncated, ... naming the path.
std::unique_ptr<CheckpointReader> open_checkpoint(const std::filesystem::path& path);

/// Reads every parameter of the configuration in `dtype` (see dtype_of); tied heads are checked and dropped (B055,
/// B056). Missing, unexpected or misshaped tensors and such of another dtype than floats are an Error that names them;
/// nothing is ever initialised silently.
TensorMap load_weights(const CheckpointReader& reader, at::ScalarType dtype);

/// Writes config.json, model.safetensors and the text files of `text_source` (may be null), so that transformers loads
/// the folder. Complete or absent: everything is written and synced beside it, then renamed. Throws Error where the
/// folder already holds something, where a parameter is missing, left over or misshaped, and where the disk is full.
void write_hf_folder(const std::filesystem::path& folder, const ModelConfig& config, const TensorMap& weights,
                     at::ScalarType dtype, const CheckpointReader* text_source);

}  // namespace troupe
