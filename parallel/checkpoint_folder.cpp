#include "parallel/checkpoint_folder.h"

#include <fcntl.h>
#include <stdio.h>

#include <algorithm>

#include "base/log.h"

namespace troupe {
namespace {

namespace fs = std::filesystem;

/// -1 for anything but step-<digits>.
int64_t step_of(const fs::path& path) {
  const auto name = path.filename().string();
  constexpr size_t kPrefix = 5, kMaxDigits = 18;
  if (!name.starts_with("step-") || name.size() == kPrefix || name.size() > kPrefix + kMaxDigits) return -1;
  return name.find_first_not_of("0123456789", kPrefix) == std::string::npos ? std::stoll(name.substr(kPrefix)) : -1;
}

/// Whether `path` is what a save of this step or an earlier one left behind.
bool is_leftover(const fs::path& path, int64_t step) {
  return path.extension() == ".partial" && step_of(path.stem().stem()) >= 0 && step_of(path.stem().stem()) <= step;
}

/// Takes the name away before the content, so that no half folder ever looks like a checkpoint.
void remove_checkpoint(const fs::path& checkpoint) {
  auto doomed = checkpoint;
  doomed += ".old.partial";
  fs::remove_all(doomed);
  fs::rename(checkpoint, doomed);
  fs::remove_all(doomed);
}

}  // namespace

std::vector<fs::path> checkpoints_newest_first(const fs::path& folder) {
  std::vector<fs::path> all;
  if (!fs::is_directory(folder)) return all;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.is_directory() && step_of(entry.path()) >= 0) all.push_back(entry.path());
  }
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return step_of(a) > step_of(b); });
  return all;
}

void replace_folder(const fs::path& partial, const fs::path& final_path) {
  if (fs::exists(final_path)) {
    if (::renameat2(AT_FDCWD, partial.c_str(), AT_FDCWD, final_path.c_str(), RENAME_EXCHANGE) == 0) {
      fs::remove_all(partial);
      return;
    }
    remove_checkpoint(final_path);  // a file system without exchange
  }
  fs::rename(partial, final_path);
}

void remove_older_checkpoints(const fs::path& folder, int64_t step, int64_t keep_latest_k) {
  std::vector<fs::path> doomed;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (is_leftover(entry.path(), step)) doomed.push_back(entry.path());
  }
  for (const auto& path : doomed) fs::remove_all(path);
  if (keep_latest_k <= 0) return;
  const auto all = checkpoints_newest_first(folder);
  for (size_t i = static_cast<size_t>(keep_latest_k); i < all.size(); ++i) {
    if (step_of(all[i]) != step) remove_checkpoint(all[i]);
  }
}

void set_aside_checkpoints(const fs::path& folder, int64_t step) {
  for (const auto& path : checkpoints_newest_first(folder)) {
    if (step_of(path) <= step) break;
    auto aside = path;
    aside += ".set-aside";
    fs::remove_all(aside);
    fs::rename(path, aside);
    log::warning("checkpoint ", path.string(), " is beyond where this run begins: now ", aside.filename().string());
  }
}

}  // namespace troupe
