#include "apps/job_command.h"

#include <iostream>

#include "apps/console.h"
#include "apps/report.h"
#include "base/error.h"
#include "base/log.h"

namespace troupe::apps {
namespace {

/// Shows a run on the terminal and remembers where it writes.
class ConsoleObserver : public RunObserver {
 public:
  explicit ConsoleObserver(const Config& config)
      : console_(config.string("metrics.console"), config.integer("training.steps"),
                 config.integer("metrics.log_freq")),
        quiet_(config.string("metrics.console") == "quiet") {}

  void on_start(const nlohmann::json& description) override {
    folder_ = description.value("folder", "");
    if (quiet_) return;
    std::string parts;
    for (const auto& [name, value] : description.items()) {
      if (name == "folder" || value.is_null() || value == "") continue;
      parts +=
          concat(parts.empty() ? "" : ", ", name, " ", value.is_string() ? value.get<std::string>() : value.dump());
    }
    log::info("run ", folder_, ": ", parts);
  }
  void on_step(const nlohmann::json& metrics) override { console_.step(metrics); }
  void on_evaluation(const nlohmann::json& metrics) override {
    if (!quiet_) log::info("evaluation after step ", metrics.value("step", int64_t{0}), ":", evaluation_text(metrics));
  }
  void on_end() override {
    if (folder_.empty()) return;
    try {
      write_report(folder_);
    } catch (const std::exception& error) {
      log::warning("no report: ", error.what());
    }
  }
  const std::string& folder() const { return folder_; }

 private:
  static std::string evaluation_text(const nlohmann::json& metrics) {
    std::string text;
    for (const auto& [name, value] : metrics.items()) {
      if (value.is_number() && (name.rfind("evaluation/", 0) == 0 || name.rfind("validation/", 0) == 0))
        text += concat("  ", name, " ", value.dump());
    }
    return text;
  }

  Console console_;
  bool quiet_;
  std::string folder_;
};

int run_job(const Job& job, const std::string& path, const std::vector<std::string>& overrides, bool dry_run,
            bool print_config) {
  const auto config = Config::load(path, overrides);
  if (print_config) {
    std::cout << config.print(true);
    return 0;
  }
  if (dry_run) {
    std::cout << job.describe(config).dump(2) << "\n";
    return 0;
  }
  return play_job(job, config);
}

}  // namespace

int play_job(const Job& job, const Config& config) {
  std::string folder;
  int code = 0;
  {
    ConsoleObserver observer(config);
    code = job.run(config, observer);
    folder = observer.folder();
  }
  if (code == 0 && !folder.empty()) job.closing_words(folder);
  return code;
}

Job trainer_job(PretrainTopology (*build)(const Config&), std::function<void(const std::string&)> closing_words) {
  return {[build](const Config& config) { return describe(build(config)); },
          [build](const Config& config, RunObserver& observer) {
            auto topology = build(config);
            topology.observer = &observer;
            return run_pretrain(topology);
          },
          std::move(closing_words)};
}

void add_job(CLI::App& app, Action& action, const std::string& name, const std::string& help, Job job) {
  struct Options {
    std::string path;
    bool dry_run = false, print_config = false;
  };
  auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand(name, help);
  command->add_option("config", options->path, "CONFIG.toml; any key can be overridden by --section.key=value")
      ->required();
  command->add_flag("--dry-run", options->dry_run, "check everything and print the topology and the memory it needs");
  command->add_flag("--print-config", options->print_config, "print every key with its value and where it came from");
  command->allow_extras();
  command->callback([command, options, job = std::move(job), &action] {
    action = [command, options, job] {
      return run_job(job, options->path, command->remaining(), options->dry_run, options->print_config);
    };
  });
}

}  // namespace troupe::apps
