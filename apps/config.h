// Configuration: one TOML file, overrides from the command line, and a table of every key. Nothing else reads TOML.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace troupe::apps {

enum class KeyType { kInteger, kNumber, kBoolean, kString, kStringList, kIntegerOrAuto };

/// One key: its full name, type, default, allowed words or range, and a sentence for readers.
struct KeySpec {
  std::string name;  // "training.steps"
  KeyType type;
  nlohmann::json default_value;
  std::string help;
  std::vector<std::string> choices = {};  // of strings; empty: any
  double minimum = -1e300, maximum = 1e300;
};

/// Every key but those of the tables [[reward]] and [[topology.place]], by section in reading order.
const std::vector<KeySpec>& config_keys();

/// A value and where it came from: "default", "FILE:LINE" or "command line".
struct ConfigValue {
  nlohmann::json value;
  std::string origin = "default";
};

/// All keys with their values. Getters throw std::logic_error on names that are not in the table (a bug, not a user's
/// mistake).
class Config {
 public:
  Config();
  /// Reads a file, then overrides of the form "--section.key=value". Throws UsageError: unknown key or section (with
  /// the nearest known one), wrong type, value outside its range or choices, syntax error with line.
  static Config load(const std::string& path, const std::vector<std::string>& overrides);
  static Config from_text(const std::string& toml, const std::string& origin,
                          const std::vector<std::string>& overrides);

  int64_t integer(const std::string& name) const;
  double number(const std::string& name) const;
  bool boolean(const std::string& name) const;
  std::string string(const std::string& name) const;
  std::vector<std::string> strings(const std::string& name) const;
  /// The number, or `automatic` where the value is "auto".
  int64_t integer_or(const std::string& name, int64_t automatic) const;
  bool is_default(const std::string& name) const;
  /// Gives a key that nobody has set a value that follows from another key.
  void fill(const std::string& name, nlohmann::json value, const std::string& origin);
  const ConfigValue& value(const std::string& name) const;

  /// The [[reward]] tables, as JSON objects, in file order.
  const std::vector<nlohmann::json>& rewards() const { return rewards_; }
  /// The [[topology.place]] tables.
  const std::vector<nlohmann::json>& places() const { return places_; }

  /// Every key with value and origin, as TOML with comments (--print-config).
  std::string print(bool with_origins) const;
  /// What somebody has set, as TOML that gives this configuration again.
  std::string print_given() const;

 private:
  friend struct TomlReader;
  void set(const std::string& name, nlohmann::json value, const std::string& origin);
  void override_with(const std::string& text);

  std::map<std::string, ConfigValue> values_;
  std::vector<nlohmann::json> rewards_;
  std::vector<nlohmann::json> places_;
};

/// One job of a pipeline.
struct JobStage {
  std::string name, command;       // "sft": `troupe sft`
  Config config;                   // run.name and run.folder follow from the pipeline's where the stage names none
  std::vector<std::string> needs;  // stages whose folders its configuration names
};

struct JobPipeline {
  std::string name, folder;
  std::vector<JobStage> stages;  // in the order of the file, which is the order they run in
};

/// A file of [[stage]] tables, each with `name`, `command` and sections of its own ([stage.training]); sections outside
/// of them are for every stage. "{NAME}" in a text of a stage is the run folder of an earlier stage of this name.
/// Overrides: --section.key=value for every stage, --NAME.section.key=value for one, --pipeline.folder=... for itself.
/// Throws UsageError as Config::load.
JobPipeline load_pipeline(const std::string& path, const std::vector<std::string>& overrides);

}  // namespace troupe::apps
