// `troupe rl CONFIG.toml`: reinforcement learning.
#include <fstream>

#include "apps/build_topology.h"
#include "apps/job_command.h"
#include "base/log.h"

namespace troupe::apps {
namespace {

/// First ten and last ten rewards and the held-out scores, from the run's own record.
void summarise(const std::string& folder) {
  std::ifstream lines(folder + "/metrics.jsonl");
  std::vector<double> rewards, scores;
  double minutes = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto record = nlohmann::json::parse(line, nullptr, false);
    if (!record.is_object()) continue;
    if (record.contains("reward/mean") && record["reward/mean"].is_number()) rewards.push_back(record["reward/mean"]);
    if (record.contains("evaluation/score") && record["evaluation/score"].is_number())
      scores.push_back(record["evaluation/score"]);
    minutes = record.value("time_s", 0.0) / 60;
  }
  auto mean = [&](size_t begin, size_t end) {
    double sum = 0;
    for (size_t i = begin; i < end; ++i) sum += rewards[i];
    return end > begin ? sum / static_cast<double>(end - begin) : 0.0;
  };
  const auto n = rewards.size(), ten = std::min<size_t>(10, n);
  if (n > 0)
    log::info("reward: ", mean(0, ten), " over the first ", ten, " steps, ", mean(n - ten, n), " over the last ", ten,
              "; ", minutes, " minutes");
  if (!scores.empty()) log::info("held-out score: ", scores.front(), " before, ", scores.back(), " after");
}

void closing_words(const std::string& folder) {
  summarise(folder);
  log::info("curves and completions: ", folder, "/report.html");
  log::info("try the model:          troupe generate --model ", folder, "/model --chat --prompt \"...\"");
  log::info(
      "more rollout workers:   add --rollout.num_workers=4; another pace: --async_loop.target_offpolicy_steps=0 "
      "(synchronous)");
  log::info("your own data, reward:  README.md, \"Your own model, data and reward\"");
}

}  // namespace

Job rl_job() {
  return {[](const Config& config) { return describe(build_rl_topology(config)); },
          [](const Config& config, RunObserver& observer) {
            auto topology = build_rl_topology(config);
            topology.observer = &observer;
            return run_rl(topology);
          },
          closing_words};
}

void add_rl(CLI::App& app, Action& action) {
  add_job(app, action, "rl", "train a model with reinforcement learning", rl_job());
}

}  // namespace troupe::apps
