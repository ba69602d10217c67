// `troupe worker --join HOST:PORT`: generates, grades or judges for a run of another process, here or on another host.
#include "actors/worker.h"

#include "apps/build_topology.h"
#include "apps/commands.h"
#include "apps/token_file.h"
#include "base/error.h"

namespace troupe::apps {
namespace {

/// "HOST:PORT", also "[::1]:PORT".
void parse_address(const std::string& text, WorkerOptions& options) {
  const auto colon = text.rfind(':');
  const auto digits = colon == std::string::npos ? "" : text.substr(colon + 1);
  if (colon == 0 || digits.empty() || digits.size() > 5 ||
      digits.find_first_not_of("0123456789") != std::string::npos || std::stoi(digits) < 1 || std::stoi(digits) > 65535)
    throw UsageError(concat("--join ", text, ": takes HOST:PORT, as the run prints it"));
  options.host = text.substr(0, colon);
  if (options.host.size() > 2 && options.host.front() == '[' && options.host.back() == ']')
    options.host = options.host.substr(1, options.host.size() - 2);
  options.port = std::stoi(digits);
}

/// A critic or reference is built from the run's configuration.
void read_configurations(const std::vector<std::string>& overrides, WorkerOptions& options) {
  const bool is_judge = options.role == "reference" || options.role == "critic";
  if (!is_judge && !overrides.empty())
    throw UsageError(concat(overrides.front(), ": a worker of role ", options.role,
                            " takes its configuration from the run; only roles reference and critic read models"));
  Config::from_text("", "the command line", overrides);  // unknown keys are found here, not after joining
  options.read_config = [overrides, role = options.role](const std::string& text) {
    return build_judge_topology(Config::from_text(text, "the run's configuration", overrides), role);
  };
}

}  // namespace

void add_worker(CLI::App& app, Action& action) {
  struct Options {
    std::string join, token_file;
    WorkerOptions worker;
  };
  auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand("worker", "play a role for a run of another process");
  command->add_option("--join", options->join, "HOST:PORT, as `troupe rl` with cluster.listen prints it")->required();
  command
      ->add_option(
          "--role", options->worker.role,
          "rollout: generate; reward: run the rules of [[reward]]; reference, critic: that model. The last two "
          "read the models that the run's configuration names; --section.key=value names others")
      ->check(CLI::IsMember(known_worker_roles()));
  command->add_option("--run-folder", options->worker.folder,
                      "critic: the run's folder, where this worker sees it under another path");
  command->add_option("--token-file", options->token_file, "file with the run's token (cluster.token_file)");
  command->add_option("--threads", options->worker.num_threads, "compute threads; 0: all cores")
      ->check(CLI::NonNegativeNumber);
  command->add_option(
      "--model", options->worker.model_path,
      "join only a run that trains this model (a folder or a GGUF file); the weights come from the run");
  command
      ->add_option("--retry-s", options->worker.retry_s, "how long to look for the run, at the start and after a loss")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--heartbeat-s", options->worker.heartbeat_s, "seconds between signs of life")
      ->check(CLI::PositiveNumber);
  command->add_option("--lost-after-s", options->worker.lost_after_s, "without a sign of life the run is lost")
      ->check(CLI::PositiveNumber);
  command->allow_extras();
  command->callback([command, options, &action] {
    action = [command, options] {
      parse_address(options->join, options->worker);
      read_configurations(command->remaining(), options->worker);
      if (!options->token_file.empty()) options->worker.token = read_token_file("--token-file", options->token_file);
      return run_worker(options->worker);
    };
  });
}

}  // namespace troupe::apps
