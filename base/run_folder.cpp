#include "base/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"

namespace troupe {
namespace {

std::filesystem::path prepare(const std::filesystem::path& folder, const char* name, int64_t last_step) {
  const auto path = folder / name;
  std::error_code none;
  if (last_step < 0 && std::filesystem::file_size(path, none) > 0 && !none) {
    auto aside = path;
    aside += ".set-aside";
    std::filesystem::rename(path, aside);
  }
  cut_json_lines_after(path, last_step);
  return path;
}

}  // namespace

JsonLinesFile::JsonLinesFile(std::filesystem::path path) : path_(std::move(path)) {
  file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file_ < 0) fail("cannot write ", path_.string(), ": ", std::strerror(errno));
}

JsonLinesFile::~JsonLinesFile() { ::close(file_); }

void JsonLinesFile::append(const nlohmann::json& object) {
  // Completions may hold half characters: replaced, never thrown at.
  const auto line = object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  const auto before = ::lseek(file_, 0, SEEK_END);
  size_t written = 0;
  while (written < line.size()) {
    const auto count = ::write(file_, line.data() + written, line.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      const auto reason = count == 0 ? ENOSPC : errno;
      // Taken back where it can be; a half line that stays is cut on resume.
      if (before < 0 || ::ftruncate(file_, before) != 0) errno = 0;
      fail("cannot write ", path_.string(), ": ", std::strerror(reason));
    }
    written += static_cast<size_t>(count);
  }
}

void JsonLinesFile::sync() {
  if (::fsync(file_) != 0 && errno != EINVAL) fail("cannot sync ", path_.string(), ": ", std::strerror(errno));
}

int64_t cut_json_lines_after(const std::filesystem::path& path, int64_t last_step) {
  if (!std::filesystem::exists(path)) return 0;
  const auto text = read_file(path);
  std::string kept;
  int64_t num_cut = 0;
  bool broken = false;
  for (size_t begin = 0; begin < text.size();) {
    const auto end = text.find('\n', begin);
    const auto line = text.substr(begin, end == std::string::npos ? std::string::npos : end - begin);
    const auto object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    const auto step = object.is_object() ? object.value("step", nlohmann::json(0)) : nlohmann::json();
    broken = broken || end == std::string::npos || !step.is_number();
    const bool keep = !broken && step.get<int64_t>() <= last_step;
    if (keep)
      kept += line + "\n";
    else
      ++num_cut;
    begin = end == std::string::npos ? text.size() : end + 1;
  }
  if (num_cut > 0) write_file_atomically(path, kept);
  return num_cut;
}

RunFolder::Lock::Lock(const std::filesystem::path& folder) {
  make_folders(folder);
  const auto path = folder / ".lock";
  file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (file_ < 0) fail("cannot write ", path.string(), ": ", std::strerror(errno));
  if (::flock(file_, LOCK_EX | LOCK_NB) == 0 || errno == ENOLCK || errno == EOPNOTSUPP) return;
  ::close(file_);
  fail("the run folder ", folder.string(), " is in use by another process; give this run another run.folder");
}

RunFolder::Lock::~Lock() { ::close(file_); }

RunFolder::RunFolder(std::filesystem::path folder, int64_t last_step)
    : folder_(std::move(folder)),
      lock_(folder_),
      metrics_(prepare(folder_, "metrics.jsonl", last_step)),
      journal_(prepare(folder_, "journal.jsonl", last_step)),
      samples_(prepare(folder_, "rollout_samples.jsonl", last_step)) {}

void RunFolder::sync() {
  metrics_.sync();
  journal_.sync();
  samples_.sync();
}

}  // namespace troupe
