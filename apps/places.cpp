#include "apps/places.h"

#include "actors/worker.h"
#include "base/error.h"

namespace troupe::apps {

std::set<std::string> remote_roles(const Config& config) {
  std::set<std::string> placed, remote;
  for (const auto& place : config.places()) {
    for (const auto& [key, value] : place.items()) {
      if (key != "role" && key != "where")
        throw UsageError(concat("[[topology.place]]: unknown key ", key, "; known: role, where"));
      if (!value.is_string())
        throw UsageError(concat("[[topology.place]]: ", key, " = ", value.dump(), " is not a text"));
    }
    const auto role = place.value("role", ""), where = place.value("where", "local");
    if (where != "local" && where != "remote")
      throw UsageError(concat("[[topology.place]]: where = \"", where, "\" is not one of \"local\", \"remote\""));
    if (role == "rollout" || !known_worker_roles().contains(role))
      throw UsageError(
          concat("[[topology.place]]: role = \"", role,
                 "\": \"reward\", \"reference\" and \"critic\" can be placed; rollout workers join a run that ",
                 "listens (cluster.listen), ranks are threads of it"));
    if (!placed.insert(role).second)
      throw UsageError(concat("[[topology.place]]: role = \"", role, "\" is placed twice"));
    if (where == "remote") remote.insert(role);
  }
  return remote;
}

void refuse_places(const Config& config) {
  if (!config.places().empty())
    throw UsageError("[[topology.place]] is for `troupe rl`: nothing of this run can be in other processes");
}

}  // namespace troupe::apps
