// `troupe keys`: every configuration key as a Markdown page (docs/configuration.md is its output; a test compares).
#include <iostream>

#include "apps/commands.h"
#include "apps/config.h"
#include "rollout/reward_kinds.h"

namespace troupe::apps {
namespace {

constexpr const char* kTableHead = "\n| key | default | meaning |\n|---|---|---|\n";

std::string row(const std::string& key, const std::string& value, const std::string& meaning) {
  return "| `" + key + "` | " + value + " | " + meaning + " |\n";
}

std::string code(const nlohmann::json& value) { return "`" + value.dump() + "`"; }

/// [[reward]] tables: the keys that every kind has, then each kind's own.
std::string reward_section() {
  const RewardOptions defaults;
  std::string section =
      "\n## [[reward]]\n\nOne table a reward function. A sample's reward is the weighted sum of the values that came; "
      "a "
      "function that fails or is late is left out and counted,\nnever a silent 0. Beside these keys a table takes "
      "those "
      "of its kind.\n";
  section += kTableHead + row("kind", "", "which function, see below; needed") +
             row("name", "the kind", "its name in metrics; two tables of one kind need two") +
             row("weight", code(defaults.weight), "what its value is multiplied by") +
             row("timeout_s", code(defaults.timeout_s), "limit of one answer in seconds");
  for (const auto& kind : built_in_reward_kinds()) {
    section += "\n### kind = \"" + kind.name + "\"\n\n" + kind.help + ".\n" + kTableHead;
    for (const auto& key : kind.keys) section += row(key.name, code(key.default_value), key.help);
  }
  return section;
}

/// [[topology.place]] tables.
std::string place_section() {
  return std::string(
             "\n## [[topology.place]]\n\nWhere a role is played. Rollout workers need none: they join a run that "
             "listens "
             "(`cluster.listen`).\n") +
         kTableHead +
         row("role", "",
             "`\"reward\"`: the rules of every [[reward]]; `\"reference\"`; `\"critic\"`; needed, each once") +
         row("where", "`\"local\"`",
             "in the run's process (\"local\"), or in workers that join with `--role` and its name (\"remote\")");
}

}  // namespace

std::string configuration_page() {
  std::string page =
      "# Configuration keys\n\nOne TOML file; every key has a default but `model.path`; `--section.key=value` on the "
      "command line overrides. "
      "Unknown keys, wrong types and\nimpossible combinations stop with exit code 2 before anything is loaded. "
      "`--print-config` shows every value and where it came from.\n"
      "This page is printed by `troupe keys`.\n";
  std::string section;
  for (const auto& key : config_keys()) {
    const auto dot = key.name.find('.');
    if (key.name.substr(0, dot) != section) {
      section = key.name.substr(0, dot);
      page += "\n## " + section + "\n" + kTableHead;
    }
    std::string choices;
    for (const auto& word : key.choices) choices += (choices.empty() ? " (" : ", ") + word;
    page += row(key.name, code(key.default_value), key.help + (choices.empty() ? "" : choices + ")"));
  }
  return page + reward_section() + place_section();
}

void add_keys(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand("keys", "every configuration key with default and meaning");
  command->callback([&action] {
    action = [] {
      std::cout << configuration_page();
      return 0;
    };
  });
}

}  // namespace troupe::apps
