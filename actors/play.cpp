#include "actors/play.h"

#include <caf/all.hpp>

#include "actors/error.h"
#include "base/log.h"

namespace troupe {

int play(CastList cast, const PlayOptions& options) {
  int32_t code = 1;
  std::string cause;
  std::optional<Watchdog> watchdog;  // outlives the system: its destructor waits for the actors
  {
    StageConfig config(options.num_scheduler_threads);
    if (options.network) config.use_network(*options.network);
    caf::actor_system system(config);
    std::optional<SignalWatch> signals;
    const auto supervisor = spawn_supervisor(system, std::move(cast));
    if (options.handle_signals)
      signals.emplace("interrupted: finishing the step, then a checkpoint; again to end at once",
                      [supervisor] { caf::anon_send(supervisor, atom::interrupt_v); });
    {
      caf::scoped_actor self(system);
      // The one wait without a limit: the run itself. Whatever hangs inside of it has its own.
      self->request(supervisor, caf::infinite, atom::ended_v)
          .receive(
              [&](int32_t code_of_run, std::string& cause_of_run) {
                code = code_of_run;
                cause = std::move(cause_of_run);
              },
              [&](const caf::error& error) { cause = "the supervisor fell: " + describe_error(error, system); });
    }
    if (!cause.empty()) log::error(cause);
    watchdog.emplace(options.shutdown_grace, code, options.on_forced_end);
  }
  return code;
}

}  // namespace troupe
