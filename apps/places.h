// [[topology.place]]: which roles of a run are in other processes.
#pragma once

#include <set>
#include <string>

#include "apps/config.h"

namespace troupe::apps {

/// Those of "reward", "reference", "critic" that workers play. Rollout workers join by themselves, as many as there
/// are. UsageError where a table says what is not known, or a role stands twice.
std::set<std::string> remote_roles(const Config& config);
/// For commands whose roles are all in one process: UsageError where there is such a table.
void refuse_places(const Config& config);

}  // namespace troupe::apps
