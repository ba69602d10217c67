// Files: whole reads, memory maps, and writes that are either complete or absent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace troupe {

/// Whole file as bytes. Throws Error with the path and the system's reason.
std::string read_file(const std::filesystem::path& path);
/// The same for files too large to hold: `take` gets one piece after the other.
void read_file_in_pieces(const std::filesystem::path& path,
                         const std::function<void(std::span<const std::byte>)>& take);
/// Writes beside `path`, syncs, renames over it and syncs the folder: a reader sees the old or the new file, never a
/// part.
void write_file_atomically(const std::filesystem::path& path, std::string_view bytes);
/// Writes and syncs (no rename): for files inside a folder that is renamed as a whole.
void write_file_synced(const std::filesystem::path& path, std::string_view bytes);
/// fsync of a folder, so that a rename inside it survives a power cut.
void sync_folder(const std::filesystem::path& folder);
/// Creates the folder and its parents. Throws Error naming the folder and the reason.
void make_folders(const std::filesystem::path& folder);

/// Read-only memory map of a whole file; an empty file gives an empty span.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  /// Pages that were read count as this process's memory; after this those around `part` of bytes() do not, until they
  /// are read again.
  static void release_pages(std::span<const std::byte> part);

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

/// Free bytes of the file system that holds `path` (or its nearest existing parent).
uint64_t free_disk_bytes(const std::filesystem::path& path);

}  // namespace troupe
