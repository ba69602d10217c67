// `troupe pretrain CONFIG.toml`: the trainer alone, on text.
#include "apps/build_topology.h"
#include "apps/job_command.h"
#include "base/log.h"

namespace troupe::apps {

Job pretrain_job() {
  return trainer_job(&build_pretrain_topology, [](const std::string& folder) {
    log::info("curves:        ", folder, "/report.html");
    log::info("try the model: troupe generate --model ", folder, "/model --prompt \"...\" --temperature 0.8");
  });
}

void add_pretrain(CLI::App& app, Action& action) {
  add_job(app, action, "pretrain", "train a model on text", pretrain_job());
}

}  // namespace troupe::apps
