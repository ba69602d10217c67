// Fixture model folders that are not built yet: the one list that other work empties.
#pragma once

#include <set>
#include <string>

namespace troupe {

inline const std::set<std::string>& unsupported_fixture_models() {
  static const std::set<std::string> folders;
  return folders;
}

}  // namespace troupe
