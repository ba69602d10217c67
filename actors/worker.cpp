#include "actors/worker.h"

#include <unistd.h>

#include <caf/all.hpp>
#include <climits>

#include "actors/error.h"
#include "actors/guest.h"
#include "actors/model_source.h"
#include "actors/remote_service.h"
#include "actors/stage.h"
#include "base/cpu.h"
#include "base/log.h"

namespace troupe {
namespace {

std::string process_name() {
  char host[HOST_NAME_MAX + 1] = {};
  ::gethostname(host, HOST_NAME_MAX);
  return concat(host, ":", ::getpid());
}

}  // namespace

int run_worker(const WorkerOptions& options) {
  use_zmq_for_remote_services();
  GuestSetup setup;
  setup.options = options;
  if (setup.options.num_threads <= 0) setup.options.num_threads = num_usable_cores();
  setup.name = process_name();
  if (!options.model_path.empty())
    setup.model = ModelSource({options.model_path, true, ""}, 0).description().fingerprint();
  int32_t code = 1;
  std::string cause;
  std::optional<Watchdog> watchdog;  // as in play(): outlives the system
  {
    StageConfig config(2);
    config.use_network({options.heartbeat_s, options.lost_after_s});
    caf::actor_system system(config);
    log::info("joining the run at ", options.host, ":", options.port, " as ", setup.name);
    const auto guest = spawn_guest(system, std::move(setup));
    std::optional<SignalWatch> signals;
    if (options.handle_signals)
      signals.emplace("interrupted: leaving the run; again to end at once",
                      [guest] { caf::anon_send(guest, atom::interrupt_v); });
    {
      caf::scoped_actor self(system);
      // The one wait without a limit: the run itself. Joining and rejoining have theirs.
      self->request(guest, caf::infinite, atom::ended_v)
          .receive(
              [&](int32_t code_of_guest, std::string& cause_of_guest) {
                code = code_of_guest;
                cause = std::move(cause_of_guest);
              },
              [&](const caf::error& error) { cause = "the guest fell: " + describe_error(error, system); });
    }
    if (!cause.empty()) log::error(cause);
    watchdog.emplace(std::chrono::seconds(10), code, nullptr);
  }
  return code;
}

}  // namespace troupe
