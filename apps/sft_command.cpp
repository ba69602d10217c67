// `troupe sft CONFIG.toml`: supervised fine-tuning on chats.
#include "apps/build_topology.h"
#include "apps/job_command.h"
#include "base/log.h"

namespace troupe::apps {

Job sft_job() {
  return trainer_job(&build_sft_topology, [](const std::string& folder) {
    log::info("curves:        ", folder, "/report.html");
    log::info("try the model: troupe generate --model ", folder, "/model --chat --prompt \"...\"");
  });
}

void add_sft(CLI::App& app, Action& action) {
  add_job(app, action, "sft", "fine-tune a model on chats: it learns the assistant's turns", sft_job());
}

}  // namespace troupe::apps
