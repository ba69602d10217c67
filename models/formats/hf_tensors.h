// The tensors of a Hugging Face folder, of any family: files found, names brought to the text model's own, quantised
// weights unpacked while reading. What a configuration makes of them is hf_folder.cpp's matter.
#pragma once

#include "models/formats/checkpoint_reader.h"
#include "models/formats/safetensors.h"

namespace troupe {

/// JSON of a file in a model folder, null where there is no such file. Throws Error naming the file: not JSON, far too
/// large.
nlohmann::json read_json_file(const std::filesystem::path& path);
/// Text of a file in a model folder, "" where there is none.
std::string read_text_file(const std::filesystem::path& path);

class HfTensors {
 public:
  /// `config` is the folder's config.json: `text_config` says that other tensors than the text model's may be there,
  /// `quantization_config` how weights are packed. Throws Error naming folder or file.
  HfTensors(const std::filesystem::path& folder, const nlohmann::json& config);

  /// Names without the prefix that a multi-modal or headless folder puts before them; scales are part of their weight.
  const std::map<std::string, TensorInfo>& tensors() const { return infos_; }
  /// Offers experts that are stacked in one tensor (gate_up_proj, down_proj: [experts, out, in]) as the separate ones
  /// that the configuration has.
  void split_stacked_experts(const ModelConfig& config);
  /// Tensors of a multi-modal folder that belong to no text model.
  const std::vector<std::string>& left_alone() const { return left_alone_; }
  /// In memory of its own. Throws Error naming tensor and folder.
  Tensor read(const std::string& name, at::ScalarType dtype) const;

 private:
  enum class Packing { kPlain, kFp8Blocks, kMxfp4 };
  struct Stored {
    std::shared_ptr<SafetensorsFile> file;
    std::string name;  // in the file
  };
  struct Source {
    Packing packing = Packing::kPlain;
    Stored values, scales;
    int64_t expert = -1, first_row = 0, num_rows = 0;  // of a stacked tensor, where expert >= 0
  };

  void open_files();
  void add_file(const std::filesystem::path& path);
  std::string text_name(const std::string& stored_name) const;
  void add_sources();
  Tensor read_fp8(const Source& source) const;
  Tensor read_mxfp4(const Source& source) const;

  std::filesystem::path folder_;
  bool nested_ = false, has_scales_ = false;
  int64_t block_rows_ = 128, block_columns_ = 128;
  std::string prefix_;  // before "embed_tokens.weight" in the files
  std::map<std::string, std::shared_ptr<SafetensorsFile>> files_by_tensor_;
  std::map<std::string, Source> sources_;
  std::map<std::string, TensorInfo> infos_;
  std::vector<std::string> left_alone_;
};

}  // namespace troupe
