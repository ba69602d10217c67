// The run folder (protocol): lines of metrics.jsonl, journal.jsonl and rollout_samples.jsonl, log.txt and config.toml.
// Whoever owns the run's state writes here; the report and the tests read it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace troupe {

/// A file of JSON objects, one a line. Each line is written with one call, so a reader sees whole lines.
class JsonLinesFile {
 public:
  /// Opens for appending; creates it. Throws Error naming the path and the reason.
  explicit JsonLinesFile(std::filesystem::path path);
  ~JsonLinesFile();
  JsonLinesFile(const JsonLinesFile&) = delete;
  JsonLinesFile& operator=(const JsonLinesFile&) = delete;
  /// Throws Error naming the file and the reason (full disk, ...); a part of a line is taken back.
  void append(const nlohmann::json& object);
  /// Until this returns a power cut may take lines.
  void sync();
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  int file_ = -1;
};

/// Removes the lines whose "step" is beyond `last_step`, and a half-written or broken end (everything after it). A
/// missing file is fine. Returns how many lines went.
int64_t cut_json_lines_after(const std::filesystem::path& path, int64_t last_step);

class RunFolder {
 public:
  /// Creates the folder and cuts the three files after `last_step`; -1: they become `*.set-aside` and begin anew. The
  /// log goes on. Throws Error where another process has the folder.
  RunFolder(std::filesystem::path folder, int64_t last_step);

  JsonLinesFile& metrics() { return metrics_; }
  JsonLinesFile& journal() { return journal_; }
  JsonLinesFile& samples() { return samples_; }
  void sync();
  const std::filesystem::path& path() const { return folder_; }
  std::filesystem::path checkpoints() const { return folder_ / "checkpoints"; }

 private:
  /// Held for as long as the folder is written to; the system lets go of it with the process.
  class Lock {
   public:
    explicit Lock(const std::filesystem::path& folder);
    ~Lock();
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

   private:
    int file_ = -1;
  };

  std::filesystem::path folder_;
  Lock lock_;
  JsonLinesFile metrics_, journal_, samples_;
};

}  // namespace troupe
