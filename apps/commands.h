// The subcommands of `troupe`: one file each, listed once in main.cpp.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

namespace troupe::apps {

/// What the chosen subcommand does after the command line was read; its result is the exit code.
using Action = std::function<int()>;

void add_rl(CLI::App& app, Action& action);
void add_pretrain(CLI::App& app, Action& action);
void add_plan(CLI::App& app, Action& action);
void add_sft(CLI::App& app, Action& action);
void add_reward_model(CLI::App& app, Action& action);
void add_dpo(CLI::App& app, Action& action);
void add_pipeline(CLI::App& app, Action& action);
void add_replay(CLI::App& app, Action& action);
void add_worker(CLI::App& app, Action& action);
void add_top(CLI::App& app, Action& action);
void add_generate(CLI::App& app, Action& action);
void add_verify(CLI::App& app, Action& action);
void add_tokenize(CLI::App& app, Action& action);
void add_chat_template(CLI::App& app, Action& action);
void add_doctor(CLI::App& app, Action& action);
void add_report(CLI::App& app, Action& action);
void add_keys(CLI::App& app, Action& action);

/// The text of docs/configuration.md.
std::string configuration_page();

}  // namespace troupe::apps
