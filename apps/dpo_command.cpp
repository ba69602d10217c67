// `troupe dpo CONFIG.toml`: direct preference optimisation (DPO, IPO).
#include "apps/build_topology.h"
#include "apps/job_command.h"
#include "base/log.h"

namespace troupe::apps {

Job dpo_job() {
  return trainer_job(&build_dpo_topology, [](const std::string& folder) {
    log::info("curves:        ", folder, "/report.html");
    log::info("try the model: troupe generate --model ", folder, "/model --chat --prompt \"...\"");
  });
}

void add_dpo(CLI::App& app, Action& action) {
  add_job(app, action, "dpo", "train a policy on preferences directly (DPO, IPO)", dpo_job());
}

}  // namespace troupe::apps
