// The reporter actor: once a second it asks the run control how it stands and puts that, with what every role is at and
// who waits for whom, into <run folder>/status.json, for `troupe top` and whoever else looks on. A role that hangs does
// not stop it: no answer is what it then tells.
#pragma once

#include <filesystem>

#include "actors/interfaces.h"
#include "actors/trace.h"

namespace troupe {

struct ReporterSetup {
  std::filesystem::path path;
  std::shared_ptr<Trace> trace;
  std::chrono::milliseconds interval{1'000};
  std::chrono::milliseconds limit{2'000};    // for an answer of the run control, of the reward pool
  std::chrono::milliseconds window{10'000};  // that rates and idle shares are of
};

/// Nothing that it reads or cannot write ends it: the next look comes. The reward pool, where there is one, is
/// introduced to it.
reporter_actor spawn_reporter(caf::actor_system& system, run_control_actor control, ReporterSetup setup);

/// The first word: a run begins, before anybody can tell more. Throws Error where the file cannot be written.
void open_status(const std::filesystem::path& path);
/// The last word: the run is over, and how. What stood in the file stays. Throws nothing.
void close_status(const std::filesystem::path& path, const std::string& how);

}  // namespace troupe
