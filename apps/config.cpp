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
#include <functional>
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

/// What reads TOML into configurations.
struct TomlReader {
  /// What becomes of a value before it counts.
  using Rewrite = std::function<json(json value, const std::string& where)>;

  static toml::table parse(const std::string& text, const std::string& origin) {
    try {
      return toml::parse(text, origin);
    } catch (const toml::parse_error& error) {
      throw UsageError(concat(origin, ":", error.source().begin.line, ": not valid TOML: ", error.description()));
    } catch (const Error& error) {
      throw UsageError(concat(origin, ": ", error.what()));
    }
  }

  static void read_rewards(Config& config, const toml::node& node, const std::string& where, const Rewrite& rewrite) {
    const auto* array = node.as_array();
    if (array == nullptr) throw UsageError(concat(where, ": rewards are written as [[reward]] tables"));
    for (const auto& element : *array) {
      if (!element.is_table()) throw UsageError(concat(where, ": rewards are written as [[reward]] tables"));
      config.rewards_.push_back(rewrite(to_json(element, "reward", where), where));
    }
  }

  /// Sections and [[reward]] tables of `root`, but those named in `others`.
  static void read(Config& config, const toml::table& root, const std::string& origin,
                   const std::set<std::string>& others, const Rewrite& rewrite) {
    for (const auto& [section_key, node] : root) {
      const std::string section(section_key.str());
      if (others.count(section) != 0) continue;
      const auto where = concat(origin, ":", node.source().begin.line);
      if (section == "reward") {
        read_rewards(config, node, where, rewrite);
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
        config.set(name, rewrite(to_json(value, name, line), line), line);
      }
    }
  }

  static std::string text(const toml::table& table, const char* key, const std::string& where) {
    const auto* node = table.get(key);
    if (node == nullptr || !node->is_string()) throw UsageError(concat(where, ": a stage needs a ", key, ", a text"));
    return node->as_string()->get();
  }

  static void override_with(Config& config, const std::string& text) { config.override_with(text); }
  static void rewrite_texts(Config& config, const Rewrite& rewrite) {
    for (auto& [name, entry] : config.values_) entry.value = rewrite(std::move(entry.value), entry.origin);
    for (auto& reward : config.rewards_) reward = rewrite(std::move(reward), "reward");
  }
  static void finish(Config& config) { fill_from_preset(config); }
};

Config Config::from_text(const std::string& text, const std::string& origin,
                         const std::vector<std::string>& overrides) {
  Config config;
  TomlReader::read(config, TomlReader::parse(text, origin), origin, {},
                   [](json value, const std::string&) { return value; });
  for (const auto& text_override : overrides) config.override_with(text_override);
  fill_from_preset(config);
  return config;
}

JobPipeline load_pipeline(const std::string& path, const std::vector<std::string>& overrides) {
  std::string text;
  try {
    text = read_file(path);
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
  const auto root = TomlReader::parse(text, path);
  JobPipeline pipeline;
  const auto* own = root.get_as<toml::table>("pipeline");
  if (own != nullptr) {
    for (const auto& [key, value] : *own) {
      const std::string name(key.str());
      if ((name != "name" && name != "folder") || !value.is_string())
        throw UsageError(concat(path, ":", value.source().begin.line, ": [pipeline] holds name and folder, two texts"));
      (name == "name" ? pipeline.name : pipeline.folder) = value.as_string()->get();
    }
  }
  const auto* stages = root.get_as<toml::array>("stage");
  if (stages == nullptr || stages->empty())
    throw UsageError(concat(path, ": a pipeline consists of [[stage]] tables, and there is none"));
  std::vector<std::string> names;
  for (const auto& node : *stages) {
    const auto where = concat(path, ":", node.source().begin.line);
    if (!node.is_table()) throw UsageError(concat(where, ": stages are written as [[stage]] tables"));
    const auto name = TomlReader::text(*node.as_table(), "name", where);
    if (name.empty() || name.find_first_of("/{}=. ") != std::string::npos || known_sections().count(name) != 0 ||
        name == "pipeline" || name == "reward")
      throw UsageError(concat(where, ": a stage cannot be called \"", name, "\""));
    if (std::find(names.begin(), names.end(), name) != names.end())
      throw UsageError(concat(where, ": two stages are called ", name));
    names.push_back(name);
  }
  std::vector<std::string> for_all;
  std::vector<std::vector<std::string>> for_one(names.size());
  for (const auto& one : overrides) {
    const auto first = one.starts_with("--") ? one.substr(2, one.find_first_of(".=", 2) - 2) : std::string();
    const auto stage = std::find(names.begin(), names.end(), first);
    if (one.starts_with("--pipeline.folder=")) {
      pipeline.folder = one.substr(one.find('=') + 1);
    } else if (stage != names.end() && one.size() > first.size() + 2 && one[first.size() + 2] == '.') {
      for_one[static_cast<size_t>(stage - names.begin())].push_back("--" + one.substr(first.size() + 3));
    } else {
      for_all.push_back(one);
    }
  }
  if (pipeline.name.empty()) pipeline.name = "pipeline";
  if (pipeline.folder.empty()) pipeline.folder = "runs/" + pipeline.name;

  for (const auto& node : *stages) {
    const auto& table = *node.as_table();
    const auto where = concat(path, ":", node.source().begin.line);
    const auto index = pipeline.stages.size();
    JobStage stage;
    stage.name = names[index];
    stage.command = TomlReader::text(table, "command", where);
    const auto plain = [](json value, const std::string&) { return value; };
    TomlReader::read(stage.config, root, path, {"pipeline", "stage"}, plain);
    TomlReader::read(stage.config, table, path, {"name", "command"}, plain);
    for (const auto& one : for_all) TomlReader::override_with(stage.config, one);
    for (const auto& one : for_one[index]) TomlReader::override_with(stage.config, one);
    stage.config.fill("run.name", stage.name, where);
    stage.config.fill("run.folder", pipeline.folder + "/" + stage.name, where);
    const std::function<json(json, const std::string&)> rewrite = [&](json value, const std::string& origin) {
      if (value.is_string()) {
        auto words = value.get<std::string>();
        for (size_t i = 0; i < names.size(); ++i) {
          const auto mark = "{" + names[i] + "}";
          for (auto at = words.find(mark); at != std::string::npos; at = words.find(mark)) {
            if (i >= index) throw UsageError(concat(origin, ": ", mark, " is not earlier than stage ", stage.name));
            words.replace(at, mark.size(), pipeline.stages[i].config.string("run.folder"));
            if (std::find(stage.needs.begin(), stage.needs.end(), names[i]) == stage.needs.end())
              stage.needs.push_back(names[i]);
          }
        }
        return json(words);
      }
      if (value.is_structured())
        for (auto& element : value) element = rewrite(std::move(element), origin);
      return value;
    };
    TomlReader::rewrite_texts(stage.config, rewrite);
    TomlReader::finish(stage.config);
    pipeline.stages.push_back(std::move(stage));
  }
  return pipeline;
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
