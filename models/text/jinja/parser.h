// From template source to its tree.
#pragma once

#include <memory>
#include <string_view>

#include "models/text/jinja/ast.h"

namespace troupe::jinja {

/// Throws Error with the line and the construct that is wrong or not supported.
std::unique_ptr<Tree> parse(std::string_view source);

}  // namespace troupe::jinja
