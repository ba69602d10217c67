// `troupe replay RUN_FOLDER [--until-step N]`: trains again on the batches that a run recorded.
#include <filesystem>
#include <sstream>

#include "apps/build_topology.h"
#include "apps/commands.h"
#include "apps/config.h"
#include "apps/console.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"

namespace troupe::apps {
namespace {

class ReplayObserver : public RunObserver {
 public:
  explicit ReplayObserver(int64_t num_steps) : console_("auto", num_steps, 1) {}
  void on_step(const nlohmann::json& metrics) override { console_.step(metrics); }

 private:
  Console console_;
};

/// The run's own settings: its config.toml also lists what nobody had set, which is not to count as said.
Config config_of_run(const std::string& path) {
  std::istringstream lines(read_file(path));
  std::string given;
  for (std::string line; std::getline(lines, line);)
    given += (line.find("  # default: ") == std::string::npos ? line : "") + "\n";
  return Config::from_text(given, path, {});
}

int replay(const std::string& run_folder, int64_t until_step, const std::string& folder) {
  const auto path = std::filesystem::path(run_folder) / "config.toml";
  if (!std::filesystem::exists(path))
    throw UsageError(concat(run_folder, ": holds no config.toml, so it is no run folder"));
  const auto config = config_of_run(path.string());
  auto topology = build_rl_topology(config);
  topology.run.folder = folder.empty() ? (std::filesystem::path(run_folder) / "replay").string() : folder;
  ReplayObserver observer(until_step > 0 ? until_step : topology.run.steps);
  topology.observer = &observer;
  const auto code = run_replay(topology, run_folder, until_step);
  if (code == 0) log::info("the replayed weights: ", topology.run.folder, "/model");
  return code;
}

}  // namespace

void add_replay(CLI::App& app, Action& action) {
  struct Options {
    std::string run_folder, folder;
    int64_t until_step = 0;
  };
  auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand("replay", "train again on the batches that a run recorded (run.record_batches)");
  command->add_option("run_folder", options->run_folder, "folder of the run")->required();
  command->add_option("--until-step", options->until_step, "last step; 0: all that were recorded")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--folder", options->folder, "where the replay writes; empty: RUN_FOLDER/replay");
  command->callback([options, &action] {
    action = [options] { return replay(options->run_folder, options->until_step, options->folder); };
  });
}

}  // namespace troupe::apps
