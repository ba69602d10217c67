#include "models/config_fields.h"

#include <cmath>

#include "base/error.h"

namespace troupe {

using nlohmann::json;

const json* ConfigFields::find(const std::string& key) const {
  asked_.insert(key);
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

bool ConfigFields::is_null(const std::string& key) const {
  const auto found = object_.find(key);
  return found != object_.end() && found->is_null();
}

int64_t ConfigFields::integer(const std::string& key, std::optional<int64_t> fallback, int64_t smallest,
                              int64_t largest) const {
  const auto* value = find(key);
  if (value == nullptr) {
    require(fallback.has_value(), "config.json: ", where_, key, " is missing");
    return *fallback;
  }
  double as_double = 0;
  if (value->is_number_float()) as_double = value->get<double>();  // some tools write 32.0
  const bool whole_float =
      value->is_number_float() && std::abs(as_double) < 0x1p53 && as_double == std::floor(as_double);
  require(value->is_number_integer() || whole_float, "config.json: ", where_, key, " must be an integer, not ",
          value->dump());
  const bool too_large = value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(largest);
  const auto result = whole_float ? static_cast<int64_t>(as_double) : too_large ? largest : value->get<int64_t>();
  require(!too_large && result >= smallest && result <= largest, "config.json: ", where_, key, " = ", value->dump(),
          " is not between ", smallest, " and ", largest);
  return result;
}

double ConfigFields::number(const std::string& key, std::optional<double> fallback) const {
  const auto* value = find(key);
  if (value == nullptr) {
    require(fallback.has_value(), "config.json: ", where_, key, " is missing");
    return *fallback;
  }
  require(value->is_number(), "config.json: ", where_, key, " must be a number, not ", value->dump());
  const auto result = value->get<double>();
  require(std::isfinite(result), "config.json: ", where_, key, " is not finite");
  return result;
}

std::vector<double> ConfigFields::numbers(const std::string& key) const {
  const auto* value = find(key);
  require(value != nullptr, "config.json: ", where_, key, " is missing");
  require(value->is_array(), "config.json: ", where_, key, " must be a list of numbers");
  std::vector<double> result;
  for (const auto& item : *value) {
    require(item.is_number() && std::isfinite(item.get<double>()), "config.json: ", where_, key,
            " must be a list of numbers, but holds ", item.dump());
    result.push_back(item.get<double>());
  }
  return result;
}

bool ConfigFields::boolean(const std::string& key, bool fallback) const {
  const auto* value = find(key);
  if (value == nullptr) return fallback;
  require(value->is_boolean(), "config.json: ", where_, key, " must be true or false, not ", value->dump());
  return value->get<bool>();
}

std::string ConfigFields::text(const std::string& key, std::optional<std::string> fallback) const {
  const auto* value = find(key);
  if (value == nullptr) {
    require(fallback.has_value(), "config.json: ", where_, key, " is missing");
    return *fallback;
  }
  require(value->is_string(), "config.json: ", where_, key, " must be a string, not ", value->dump());
  return value->get<std::string>();
}

}  // namespace troupe
