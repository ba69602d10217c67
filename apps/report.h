// report.html: a run's curves and completions in one file that opens without a network.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace troupe::apps {

/// Reads metrics.jsonl, rollout_samples.jsonl and config.toml of a run folder and writes report.html beside them.
/// Throws Error where the folder holds no metrics; lines that cannot be read (a run killed in mid-write) are left out
/// and counted.
void write_report(const std::filesystem::path& run_folder);

/// One page for the runs of a pipeline: a table of what changed in each, and each run's own page behind a button.
void write_pipeline_report(const std::filesystem::path& folder, const std::string& name,
                           const std::vector<std::filesystem::path>& runs);

/// First and last value of a metric that says how a run went.
struct RunChange {
  std::string metric;
  double first = 0, last = 0;
};
/// The losses, accuracies, rewards, scores and the KL of a run; rewards and KL as means over ten steps.
std::vector<RunChange> summarize_run(const std::filesystem::path& folder);

}  // namespace troupe::apps
