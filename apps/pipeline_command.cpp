// `troupe pipeline PIPELINE.toml`: several jobs one after the other, such as fine-tuning, a reward model and PPO, as
// one. Each stage is what its subcommand is, with its own run folder, checkpoints and resume. A stage that is done is
// not done again: its folder holds done.json with a hash of the configuration.
#include <iostream>

#include "apps/job_command.h"
#include "apps/report.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"

namespace troupe::apps {
namespace {

namespace fs = std::filesystem;

Job find_job(const JobStage& stage) {
  const std::vector<std::pair<std::string, Job (*)()>> jobs{{"dpo", &dpo_job},
                                                            {"pretrain", &pretrain_job},
                                                            {"reward-model", &reward_model_job},
                                                            {"rl", &rl_job},
                                                            {"sft", &sft_job}};
  std::string known;
  for (const auto& [name, make] : jobs) {
    if (name == stage.command) return make();
    known += (known.empty() ? "" : ", ") + name;
  }
  throw UsageError(concat("stage ", stage.name, ": command = \"", stage.command, "\" is not known; known: ", known));
}

fs::path folder_of(const JobStage& stage) { return stage.config.string("run.folder"); }
fs::path mark_of(const JobStage& stage) { return folder_of(stage) / "done.json"; }

/// Of every value, wherever it came from.
std::string hash_of(const JobStage& stage) {
  const auto text = stage.command + "\n" + stage.config.print(false);
  return xxh3_128(std::as_bytes(std::span(text)));
}

bool is_done(const JobStage& stage) {
  if (!fs::exists(mark_of(stage))) return false;
  const auto mark = nlohmann::json::parse(read_file(mark_of(stage)), nullptr, false);
  if (mark.is_object() && mark.value("configuration", "") == hash_of(stage)) return true;
  throw UsageError(concat("stage ", stage.name, " was done with another configuration, as ", mark_of(stage).string(),
                          " says: remove ", folder_of(stage).string(),
                          " to do it again, or name another pipeline.folder"));
}

int describe_stages(const JobPipeline& pipeline) {
  auto description = nlohmann::json::array();
  for (const auto& stage : pipeline.stages) {
    nlohmann::json entry{{"name", stage.name}, {"command", stage.command}, {"folder", folder_of(stage).string()}};
    const auto job = find_job(stage);
    bool can_be_read = true;
    for (const auto& need : stage.needs)
      for (const auto& other : pipeline.stages)
        if (other.name == need) can_be_read &= fs::exists(mark_of(other));
    entry["needs"] = stage.needs;
    // What an earlier stage has yet to write cannot be looked at.
    if (can_be_read) entry["topology"] = job.describe(stage.config);
    description.push_back(std::move(entry));
  }
  std::cout << description.dump(2) << "\n";
  return 0;
}

int run_stages(const JobPipeline& pipeline) {
  for (const auto& stage : pipeline.stages) find_job(stage);  // before the first one takes its time
  std::vector<fs::path> folders;
  for (size_t i = 0; i < pipeline.stages.size(); ++i) {
    const auto& stage = pipeline.stages[i];
    const auto title =
        concat("stage ", i + 1, " of ", pipeline.stages.size(), ", ", stage.name, " (", stage.command, ")");
    folders.push_back(folder_of(stage));
    if (is_done(stage)) {
      log::info(title, ": done before");
      continue;
    }
    log::info(title);
    const int code = play_job(find_job(stage), stage.config);
    if (code != 0) {
      log::error(title, code == 130 ? ": interrupted; the same command goes on from there"
                                    : ": failed; the same command goes on from its last checkpoint");
      return code;
    }
    write_file_atomically(
        mark_of(stage),
        nlohmann::json{{"stage", stage.name}, {"command", stage.command}, {"configuration", hash_of(stage)}}.dump(1) +
            "\n");
    write_pipeline_report(pipeline.folder, pipeline.name, folders);
  }
  write_pipeline_report(pipeline.folder, pipeline.name, folders);
  for (const auto& folder : folders) {
    std::string line;
    for (const auto& change : summarize_run(folder))
      line += concat(line.empty() ? "" : ", ", change.metric, " ", change.first, " -> ", change.last);
    log::info(folder.filename().string(), ": ", line);
  }
  log::info("report of all stages: ", pipeline.folder, "/report.html");
  return 0;
}

}  // namespace

void add_pipeline(CLI::App& app, Action& action) {
  struct Options {
    std::string path;
    bool dry_run = false, print_config = false;
  };
  auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand("pipeline", "run several jobs as one: fine-tuning, reward model, RL");
  command
      ->add_option("config", options->path,
                   "PIPELINE.toml with [[stage]] tables; --section.key=value overrides a key "
                   "of every stage, --STAGE.section.key=value of one")
      ->required();
  command->add_flag("--dry-run", options->dry_run, "check everything and print the stages");
  command->add_flag("--print-config", options->print_config, "print every stage's keys and where they came from");
  command->allow_extras();
  command->callback([command, options, &action] {
    action = [command, options] {
      const auto pipeline = load_pipeline(options->path, command->remaining());
      if (options->print_config) {
        for (const auto& stage : pipeline.stages)
          std::cout << "# stage " << stage.name << ": troupe " << stage.command << "\n\n"
                    << stage.config.print(true) << "\n";
        return 0;
      }
      return options->dry_run ? describe_stages(pipeline) : run_stages(pipeline);
    };
  });
}

}  // namespace troupe::apps
