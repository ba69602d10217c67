// `troupe keys`: every configuration key as a Markdown page (docs/configuration.md is its output; a test compares).
#include <iostream>

#include "apps/commands.h"
#include "apps/config.h"

namespace troupe::apps {

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
      page += "\n## " + section + "\n\n| key | default | meaning |\n|---|---|---|\n";
    }
    std::string choices;
    for (const auto& word : key.choices) choices += (choices.empty() ? " (" : ", ") + word;
    page += "| `" + key.name + "` | `" + key.default_value.dump() + "` | " + key.help +
            (choices.empty() ? "" : choices + ")") + " |\n";
  }
  page +=
      "\n## [[reward]]\n\nOne table a reward function: `kind`, `name` (default: the kind), `weight` (1), `timeout_s` "
      "(10) and the kind's own keys, "
      "which `rollout/reward.h` lists.\nA sample's reward is the weighted sum of the values that came; a function that "
      "fails or is late is left out and counted, never a silent 0.\n";
  return page;
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
