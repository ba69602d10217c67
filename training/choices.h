// Names in a configuration that stand for one of a few choices; an unknown one lists what is known.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>

#include "base/error.h"

namespace troupe {

/// The value that `name` stands for. Throws UsageError naming the key, the value and the known names.
template <class T>
T choose(const std::string& key, const std::string& name, std::initializer_list<std::pair<const char*, T>> known) {
  std::string list;
  for (const auto& [text, value] : known) {
    if (name == text) return value;
    list += concat(list.empty() ? "" : ", ", '"', text, '"');
  }
  throw UsageError(concat(key, " = \"", name, "\" is unknown; known: ", list));
}

}  // namespace troupe
