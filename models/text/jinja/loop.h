// The `loop` variable inside a for block.
#pragma once

#include <optional>

#include "models/text/jinja/value.h"

namespace troupe::jinja {

struct LoopObject : Object {
  explicit LoopObject(std::vector<Value> values)
      : Object(values.size() * sizeof(Value) + 128), items(std::move(values)) {}
  std::vector<Value> items;
  size_t index = 0;                             // of the running iteration
  int64_t depth = 1;                            // of recursive loops
  std::optional<std::vector<Value>> last_seen;  // arguments of the last changed()
  Function recurse;                             // loop(items): empty where the block is not recursive
};

}  // namespace troupe::jinja
