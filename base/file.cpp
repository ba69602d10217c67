#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <vector>

#include "base/error.h"

namespace troupe {
namespace {

[[noreturn]] void fail_system(const char* action, const std::filesystem::path& path) {
  const int code = errno;
  fail("cannot ", action, " ", path.string(), ": ", std::strerror(code));
}

class FileDescriptor {
 public:
  FileDescriptor(const std::filesystem::path& path, int flags, mode_t mode = 0644)
      : value_(::open(path.c_str(), flags | O_CLOEXEC, mode)) {}
  ~FileDescriptor() {
    if (value_ >= 0) ::close(value_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int value() const { return value_; }

 private:
  int value_;
};

}  // namespace

std::string read_file(const std::filesystem::path& path) {
  FileDescriptor file(path, O_RDONLY);
  struct stat info {};
  if (file.value() < 0 || ::fstat(file.value(), &info) != 0) fail_system("read", path);
  if (S_ISDIR(info.st_mode)) fail("cannot read ", path.string(), ": it is a folder");
  std::string bytes(static_cast<size_t>(info.st_size), '\0');
  size_t done = 0;
  for (;;) {
    if (done == bytes.size()) bytes.resize(bytes.size() + 4096);  // also serves files that grow or say size 0 (pipes)
    const auto count = ::read(file.value(), bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_system("read", path);
    if (count == 0) break;
    done += static_cast<size_t>(count);
  }
  bytes.resize(done);
  return bytes;
}

void read_file_in_pieces(const std::filesystem::path& path,
                         const std::function<void(std::span<const std::byte>)>& take) {
  FileDescriptor file(path, O_RDONLY);
  if (file.value() < 0) fail_system("read", path);
  std::vector<std::byte> piece(size_t{1} << 20);
  for (;;) {
    const auto count = ::read(file.value(), piece.data(), piece.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_system("read", path);
    if (count == 0) return;
    take({piece.data(), static_cast<size_t>(count)});
  }
}

void write_file_synced(const std::filesystem::path& path, std::string_view bytes) {
  FileDescriptor file(path, O_WRONLY | O_CREAT | O_TRUNC);
  if (file.value() < 0) fail_system("write", path);
  while (!bytes.empty()) {
    const auto count = ::write(file.value(), bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_system("write", path);
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  if (::fsync(file.value()) != 0) fail_system("sync", path);
}

void write_file_atomically(const std::filesystem::path& path, std::string_view bytes) {
  auto temporary = path;
  temporary += ".partial";
  write_file_synced(temporary, bytes);
  if (::rename(temporary.c_str(), path.c_str()) != 0) fail_system("rename a new file to", path);
  sync_folder(path.has_parent_path() ? path.parent_path() : std::filesystem::path("."));
}

void sync_folder(const std::filesystem::path& folder) {
  FileDescriptor file(folder, O_RDONLY | O_DIRECTORY);
  if (file.value() < 0 || ::fsync(file.value()) != 0) fail_system("sync", folder);
}

void make_folders(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail("cannot create the folder ", folder.string(), ": ", error.message());
}

MappedFile::MappedFile(const std::filesystem::path& path) {
  FileDescriptor file(path, O_RDONLY);
  struct stat info {};
  if (file.value() < 0 || ::fstat(file.value(), &info) != 0) fail_system("open", path);
  if (!S_ISREG(info.st_mode)) fail("cannot open ", path.string(), ": not a regular file");
  size_ = static_cast<size_t>(info.st_size);
  if (size_ == 0) return;
  void* address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.value(), 0);
  if (address == MAP_FAILED) fail_system("map", path);
  data_ = static_cast<const std::byte*>(address);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::release_pages(std::span<const std::byte> part) {
  if (part.empty()) return;
  const auto address = reinterpret_cast<uintptr_t>(part.data());
  const auto begin = address / static_cast<uintptr_t>(::getpagesize()) * static_cast<uintptr_t>(::getpagesize());
  // A wish: where it is refused, the pages stay.
  ::madvise(reinterpret_cast<void*>(begin), address + part.size() - begin, MADV_DONTNEED);
}

uint64_t free_disk_bytes(const std::filesystem::path& path) {
  auto at = std::filesystem::absolute(path);
  while (!std::filesystem::exists(at) && at.has_relative_path()) at = at.parent_path();
  struct statvfs info {};
  if (::statvfs(at.c_str(), &info) != 0) fail_system("ask for free space at", at);
  return uint64_t{info.f_bavail} * info.f_frsize;
}

}  // namespace troupe
