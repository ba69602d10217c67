#include "apps/config.h"

#include "base/error.h"

// Where a malformed file meets an assumption that toml++ only asserts ("[" at the end of a line), a release build would
// go on regardless; here it is an error like any other.
#pragma push_macro("NDEBUG")
#undef NDEBUG
#define TOML_ASSERT(condition) ((condition) ? void() : troupe::fail("the file is not valid TOML"))
#include <toml++/toml.h>
#pragma pop_macro("NDEBUG")

#include <cmath>
#include <set>
#include <sstream>

#include "apps/algorithm_keys.h"
#include "base/file.h"
#include "base/text.h"
#include "models/text/unicode.h"

namespace troupe::apps {
namespace {

using nlohmann::json;

const KeySpec* find_key(const std::string& name) {
  for (const auto& key : config_keys()) {
    if (key.name == name) return &key;
  }
  return nullptr;
}

std::set<std::string> known_sections() {
  std::set<std::string> sections;
  for (const auto& key : config_keys()) sections.insert(key.name.substr(0, key.name.find('.')));
  return sections;
}

const char* type_text(KeyType type) {
  switch (type) {
    case KeyType::kInteger:
      return "a whole number";
    case KeyType::kNumber:
      return "a number";
    case KeyType::kBoolean:
      return "true or false";
    case KeyType::kString:
      return "a string";
    case KeyType::kStringList:
      return "a list of strings";
    case KeyType::kIntegerOrAuto:
      return "a whole number or \"auto\"";
  }
  return "";
}

[[noreturn]] void unknown_key(const std::string& name, const std::string& origin) {
  std::vector<std::string> names;
  for (const auto& key : config_keys()) names.push_back(key.name);
  const auto dot = name.find('.');
  const auto section = name.substr(0, dot);
  const auto last = dot == std::string::npos ? name : name.substr(dot + 1);
  std::string near = nearest_name(name, names);
  // A right key in a wrong or missing section is named before a similar name in the same section.
  std::vector<std::string> same_key;
  for (const auto& candidate : names) {
    if (candidate.substr(candidate.find('.') + 1) == last && candidate != name) same_key.push_back(candidate);
  }
  if (!same_key.empty()) {
    const auto nearest = nearest_name(name, same_key);
    near = nearest.empty() ? same_key.front() : nearest;
  }
  if (last == "learning_rate") near = "optimizer.lr";
  const bool known = known_sections().count(section) != 0 || section == "reward";
  throw UsageError(concat(origin, ": unknown key ", name,
                          known || dot == std::string::npos ? "" : " (there is no section " + section + ")",
                          near.empty() ? "" : "; did you mean " + near + "?"));
}

/// TOML value -> JSON without loss; dates and times are refused.
json to_json(const toml::node& node, const std::string& name, const std::string& origin) {
  if (const auto* value = node.as_integer()) return value->get();
  if (const auto* value = node.as_floating_point()) return value->get();
  if (const auto* value = node.as_boolean()) return value->get();
  if (const auto* value = node.as_string()) return value->get();
  if (const auto* array = node.as_array()) {
    auto result = json::array();
    for (const auto& element : *array) result.push_back(to_json(element, name, origin));
    return result;
  }
  if (const auto* table = node.as_table()) {
    auto result = json::object();
    for (const auto& [key, element] : *table) result[std::string(key.str())] = to_json(element, name, origin);
    return result;
  }
  throw UsageError(concat(origin, ": ", name, " has a type that no key takes (date or time)"));
}

bool fits(KeyType type, const json& value) {
  switch (type) {
    case KeyType::kInteger:
      return value.is_number_integer();
    case KeyType::kNumber:
      return value.is_number() && std::isfinite(value.get<double>());
    case KeyType::kBoolean:
      return value.is_boolean();
    case KeyType::kString:
      return value.is_string();
    case KeyType::kStringList: {
      if (!value.is_array()) return false;
      for (const auto& element : value) {
        if (!element.is_string()) return false;
      }
      return true;
    }
    case KeyType::kIntegerOrAuto:
      return value.is_number_integer() || value == "auto";
  }
  return false;
}

std::string to_toml(const json& value) {
  if (value.is_array()) {
    std::string text = "[";
    for (const auto& element : value) text += (text.size() > 1 ? ", " : "") + to_toml(element);
    return text + "]";
  }
  if (value.is_object()) {
    std::string text = "{ ";
    for (const auto& [key, element] : value.items())
      text += (text.size() > 2 ? ", " : "") + json(key).dump() + " = " + to_toml(element);
    return text + " }";
  }
  if (value.is_number_float()) {
    auto text = value.dump();
    if (text.find_first_of(".en") == std::string::npos) text += ".0";
    return text;
  }
  return value.dump();  // JSON's strings, numbers and booleans are TOML's
}

}  // namespace

Config::Config() {
  for (const auto& key : config_keys()) values_[key.name] = {key.default_value, "default"};
}

Config Config::load(const std::string& path, const std::vector<std::string>& overrides) {
  std::string text;
  try {
    text = read_file(path);
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
  return from_text(text, path, overrides);
}

Config Config::from_text(const std::string& text, const std::string& origin,
                         const std::vector<std::string>& overrides) {
  Config config;
  toml::table root;
  try {
    root = toml::parse(text, origin);
  } catch (const toml::parse_error& error) {
    throw UsageError(concat(origin, ":", error.source().begin.line, ": not valid TOML: ", error.description()));
  } catch (const Error& error) {
    throw UsageError(concat(origin, ": ", error.what()));
  }
  for (const auto& [section_key, node] : root) {
    const std::string section(section_key.str());
    const auto where = concat(origin, ":", node.source().begin.line);
    if (section == "reward") {
      const auto* array = node.as_array();
      if (array == nullptr) throw UsageError(concat(where, ": rewards are written as [[reward]] tables"));
      for (const auto& element : *array) {
        if (!element.is_table()) throw UsageError(concat(where, ": rewards are written as [[reward]] tables"));
        config.rewards_.push_back(to_json(element, "reward", where));
      }
      continue;
    }
    const auto* table = node.as_table();
    if (table == nullptr) unknown_key(section, where);
    if (known_sections().count(section) == 0 && table->empty()) unknown_key(section, where);
    for (const auto& [key, value] : *table) {
      const auto name = section + "." + std::string(key.str());
      const auto line = concat(origin, ":", value.source().begin.line);
      if (name == "topology.place") {
        throw UsageError(concat(
            line,
            ": [[topology.place]] places roles in other processes or on other hosts, which this version does not do; "
            "rollout.num_workers and parallelism.data_parallel_shard_degree scale the roles of this process"));
      }
      if (find_key(name) == nullptr) unknown_key(name, line);
      config.set(name, to_json(value, name, line), line);
    }
  }
  for (const auto& text_override : overrides) config.override_with(text_override);
  fill_from_preset(config);
  return config;
}

void Config::set(const std::string& name, json value, const std::string& origin) {
  const auto& key = *find_key(name);
  if (!fits(key.type, value))
    throw UsageError(concat(origin, ": ", name, " takes ", type_text(key.type), ", not ", value.dump()));
  if (key.type == KeyType::kNumber) value = value.get<double>();
  if (!key.choices.empty() &&
      std::find(key.choices.begin(), key.choices.end(), value.get<std::string>()) == key.choices.end()) {
    std::string known;
    for (const auto& word : key.choices) known += (known.empty() ? "" : ", ") + word;
    throw UsageError(concat(origin, ": ", name, " = ", value.dump(), " is not known; known: ", known));
  }
  if (value.is_number()) {
    const auto n = value.get<double>();
    if (n < key.minimum) throw UsageError(concat(origin, ": ", name, " = ", value.dump(), " is below ", key.minimum));
    if (n > key.maximum) throw UsageError(concat(origin, ": ", name, " = ", value.dump(), " is above ", key.maximum));
  }
  values_[name] = {std::move(value), origin};
}

void Config::override_with(const std::string& text) {
  const std::string origin = "command line";
  const auto equals = text.find('=');
  if (text.rfind("--", 0) != 0 || equals == std::string::npos)
    throw UsageError(concat("cannot read ", text, ": overrides are written --section.key=value"));
  const auto name = text.substr(2, equals - 2);
  const auto word = text.substr(equals + 1);
  const auto* key = find_key(name);
  if (key == nullptr) unknown_key(name, origin);
  if (repair_utf8(word) != word) throw UsageError(concat(origin, ": ", name, " is not valid UTF-8"));
  if (key->type == KeyType::kString || (key->type == KeyType::kIntegerOrAuto && word == "auto")) {
    // Strings need no quotes on the command line; quoted ones are taken as TOML has them.
    if (word.size() >= 2 && word.front() == '"' && word.back() == '"') {
      set(name, json::parse(word, nullptr, false), origin);
    } else {
      set(name, word, origin);
    }
    return;
  }
  toml::table parsed;
  try {
    parsed = toml::parse("value = " + word);
    require(parsed.size() == 1, "one value");
  } catch (const std::exception&) {
    throw UsageError(concat(origin, ": ", name, " takes ", type_text(key->type), ", not ", word));
  }
  set(name, to_json(*parsed.get("value"), name, origin), origin);
}

const ConfigValue& Config::value(const std::string& name) const {
  const auto found = values_.find(name);
  if (found == values_.end()) throw std::logic_error("no configuration key " + name);
  return found->second;
}

int64_t Config::integer(const std::string& name) const { return value(name).value.get<int64_t>(); }
double Config::number(const std::string& name) const { return value(name).value.get<double>(); }
bool Config::boolean(const std::string& name) const { return value(name).value.get<bool>(); }
std::string Config::string(const std::string& name) const { return value(name).value.get<std::string>(); }
std::vector<std::string> Config::strings(const std::string& name) const {
  return value(name).value.get<std::vector<std::string>>();
}
int64_t Config::integer_or(const std::string& name, int64_t automatic) const {
  const auto& json_value = value(name).value;
  return json_value.is_string() ? automatic : json_value.get<int64_t>();
}
bool Config::is_default(const std::string& name) const { return value(name).origin == "default"; }
void Config::fill(const std::string& name, json value, const std::string& origin) {
  if (is_default(name) && this->value(name).value != value) set(name, std::move(value), origin);
}

std::string Config::print(bool with_origins) const {
  std::ostringstream out;
  std::string section;
  for (const auto& key : config_keys()) {
    const auto dot = key.name.find('.');
    if (key.name.substr(0, dot) != section) {
      out << (section.empty() ? "" : "\n");
      section = key.name.substr(0, dot);
      out << "[" << section << "]\n";
    }
    const auto& entry = value(key.name);
    out << key.name.substr(dot + 1) << " = " << to_toml(entry.value);
    if (with_origins) out << "  # " << entry.origin << ": " << key.help;
    out << "\n";
  }
  for (const auto& reward : rewards_) {
    out << "\n[[reward]]\n";
    for (const auto& [name, element] : reward.items()) out << name << " = " << to_toml(element) << "\n";
  }
  return out.str();
}

}  // namespace troupe::apps
