// Plays a cast to its end in this process: actor system, signals, shutdown, exit code.
#pragma once

#include <optional>

#include "actors/stage.h"
#include "actors/supervisor.h"

namespace troupe {

struct PlayOptions {
  bool handle_signals = true;
  std::chrono::milliseconds shutdown_grace{10'000};
  int num_scheduler_threads = 2;  // of the cooperative actors
  /// Last words before the process is ended with actors still in it.
  std::function<void()> on_forced_end = nullptr;
  std::optional<NetworkOptions> network = std::nullopt;  // none: no other process takes part
};

/// Returns 0, 1 (the cause is logged) or 130. A second signal, or actors that do not end within the grace, end the
/// process at once: what was saved is saved.
int play(CastList cast, const PlayOptions& options);

}  // namespace troupe
