// What the subcommands that run a configuration share: reading it, --dry-run, --print-config, the console and the
// report.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "actors/topology.h"
#include "apps/commands.h"
#include "apps/config.h"

namespace troupe::apps {

/// A job as the command line sees it: how its topology is described and run.
struct Job {
  std::function<nlohmann::json(const Config&)> describe;
  std::function<int(const Config&, RunObserver&)> run;  // exit code
  std::function<void(const std::string& folder)> closing_words;
};

/// A job of the trainer alone, of the topology that `build` makes.
Job trainer_job(PretrainTopology (*build)(const Config&), std::function<void(const std::string& folder)> closing_words);

/// The jobs of the subcommands of the same names.
Job rl_job();
Job pretrain_job();
Job sft_job();
Job reward_model_job();
Job dpo_job();

/// Runs a configuration on the console and writes its report; the exit code.
int play_job(const Job& job, const Config& config);

/// Adds `troupe NAME CONFIG.toml [--section.key=value ...] [--dry-run] [--print-config]`.
void add_job(CLI::App& app, Action& action, const std::string& name, const std::string& help, Job job);

}  // namespace troupe::apps
