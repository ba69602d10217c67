// The safetensors format: 8 bytes header length, JSON header, tensor bytes.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "models/torch.h"
#include "base/file.h"

namespace troupe {

struct SafetensorsEntry {
  std::string dtype;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // bytes in the data part
};

/// A memory-mapped, fully checked file (B059): offsets fit shape and dtype, no overlap, no gap, inside the file, no name twice.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  const std::map<std::string, SafetensorsEntry>& entries() const { return entries_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  std::span<const std::byte> bytes(const std::string& name) const;
  /// A tensor over the mapped memory (no copy; read only; keeps the map alive). Throws Error on dtypes torch lacks.
  Tensor tensor(const std::string& name) const;

 private:
  std::filesystem::path path_;
  std::shared_ptr<MappedFile> file_;
  std::map<std::string, SafetensorsEntry> entries_;
  std::map<std::string, std::string> metadata_;
  size_t data_begin_ = 0;
};

/// Writes tensors in name order, synced. Every tensor is written contiguous in its own dtype.
void write_safetensors(const std::filesystem::path& path, const std::map<std::string, Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace troupe
