// `troupe reward-model CONFIG.toml`: a model that scores answers, from pairs of a better and a worse one.
#include "apps/build_topology.h"
#include "apps/job_command.h"
#include "base/log.h"

namespace troupe::apps {

Job reward_model_job() {
  return trainer_job(&build_reward_model_topology, [](const std::string& folder) {
    log::info("curves:        ", folder, "/report.html");
    log::info("the model:     ", folder, "/model, a sequence classification folder with one label");
  });
}

void add_reward_model(CLI::App& app, Action& action) {
  add_job(app, action, "reward-model", "train a model to score answers, from preferences", reward_model_job());
}

}  // namespace troupe::apps
