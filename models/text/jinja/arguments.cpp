// Reading the arguments of built-ins, by position or by name.
#include <algorithm>

#include "models/text/jinja/builtins.h"

namespace troupe::jinja {

const Value* ArgumentReader::optional(std::string_view name) {
  taken_.emplace_back(name);
  if (position_ < arguments_.positional.size()) return &arguments_.positional[position_++];
  for (const auto& [keyword, value] : arguments_.keyword) {
    if (keyword == name) return &value;
  }
  return nullptr;
}

const Value& ArgumentReader::required(std::string_view name) {
  const Value* value = optional(name);
  require(value != nullptr, who_, ": argument '", name, "' is missing");
  return *value;
}

std::string ArgumentReader::text(std::string_view name, std::string fallback) {
  const Value* value = optional(name);
  return value == nullptr ? fallback : to_text(*value);
}

int64_t ArgumentReader::integer(std::string_view name, int64_t fallback) {
  const Value* value = optional(name);
  if (value == nullptr || value->is(Kind::kNone)) return fallback;
  if (value->is(Kind::kUndefined)) fail_undefined(*value);
  require(value->is_integral(), who_, ": argument '", name, "' must be an integer, not ", type_name(*value));
  return value->as_int();
}

bool ArgumentReader::boolean(std::string_view name, bool fallback) {
  const Value* value = optional(name);
  return value == nullptr ? fallback : is_true(*value);
}

void ArgumentReader::done() const {
  require(position_ >= arguments_.positional.size(), who_, ": too many arguments");
  for (const auto& [keyword, value] : arguments_.keyword) {
    require(std::find(taken_.begin(), taken_.end(), keyword) != taken_.end(), who_, ": unexpected keyword argument '",
            keyword, "'");
  }
}

}  // namespace troupe::jinja
