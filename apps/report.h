// report.html: a run's curves and completions in one file that opens without a network.
#pragma once

#include <filesystem>

namespace troupe::apps {

/// Reads metrics.jsonl, rollout_samples.jsonl and config.toml of a run folder and writes report.html beside them.
/// Throws Error where the folder holds no metrics; lines that cannot be read (a run killed in mid-write) are left out
/// and counted.
void write_report(const std::filesystem::path& run_folder);

}  // namespace troupe::apps
