// The safetensors format: 8 bytes header length, JSON header, tensor bytes.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "models/formats/safetensors_header.h"
#include "models/torch.h"

namespace troupe {

/// torch's type for a safetensors dtype ("BF16"), nullopt where torch has none; and the way back (Error where there is
/// none).
std::optional<at::ScalarType> scalar_type_of(const std::string& safetensors_dtype);
std::string safetensors_dtype_of(at::ScalarType type);

/// A memory-mapped, fully checked file (B059): offsets fit shape and dtype, no overlap, no gap, inside the file, no
/// name twice.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  const std::filesystem::path& path() const { return path_; }
  const std::map<std::string, SafetensorsEntry>& entries() const { return header_.entries; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  std::span<const std::byte> bytes(const std::string& name) const;
  /// A tensor over the mapped memory (no copy; read only; keeps the map alive; copied only where the file holds it at
  /// an address that its dtype cannot have). Throws Error on dtypes torch lacks.
  Tensor tensor(const std::string& name) const;
  /// MappedFile's, of one tensor.
  void release_pages(const std::string& name) const { MappedFile::release_pages(bytes(name)); }

 private:
  const SafetensorsEntry& entry(const std::string& name) const;

  std::filesystem::path path_;
  std::shared_ptr<MappedFile> file_;
  SafetensorsHeader header_;
};

/// One tensor to write; `make` is called when its turn comes, so that converted copies need not exist at once.
struct SafetensorsItem {
  std::string name;
  at::ScalarType dtype;
  std::vector<int64_t> shape;
  std::function<Tensor()> make;
};

/// Writes the file, synced: wider elements first and then by name, so that every tensor lies aligned. The same tensors
/// give the same bytes. Throws Error with the path and the system's reason (full disk, ...).
void write_safetensors(const std::filesystem::path& path, std::vector<SafetensorsItem> items,
                       const std::map<std::string, std::string>& metadata);

/// The same for tensors at hand, each in its own dtype.
void write_safetensors(const std::filesystem::path& path, const std::map<std::string, Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace troupe
