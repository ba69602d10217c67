// The folder that holds checkpoints: which there are, how one gets its name, which go. Knows names, not contents.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace troupe {

/// The folders named step-N, whole or not.
std::vector<std::filesystem::path> checkpoints_newest_first(const std::filesystem::path& folder);
/// The written `partial` folder becomes `final_path`. An older folder of that name changes places with it in a single
/// call, so that there is no moment with neither, and is removed.
void replace_folder(const std::filesystem::path& partial, const std::filesystem::path& final_path);
/// Removes all but the newest k (0: keeps all) and never `step` itself; removes what saves up to `step` left behind.
void remove_older_checkpoints(const std::filesystem::path& folder, int64_t step, int64_t keep_latest_k);
/// Takes the checkpoints beyond `step` out of the count, for a run that begins again from `step` (-1: from nothing):
/// they become `step-N.set-aside` and are named in a warning, so that no later resume mixes two futures.
void set_aside_checkpoints(const std::filesystem::path& folder, int64_t step);

}  // namespace troupe
