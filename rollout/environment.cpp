// The list of environments, and the one that a process of the user's plays.
#include "rollout/environment.h"

#include <map>
#include <mutex>

#include "base/error.h"
#include "base/text.h"
#include "rollout/calculator.h"

namespace troupe {
namespace {

/// Operations "reset" before the first turn and "step" at each. The state of an episode is the process's own: where
/// that was lost, it says so, and the sample is made again.
class RemoteEnvironment : public Environment {
 public:
  explicit RemoteEnvironment(const EnvironmentOptions& options) : options_(options.remote) {
    options_.timeout_s = options.timeout_s;
    check_remote_options(options_, "environment");
  }
  void load() const override {
    std::call_once(opened_, [this] { service_ = open_remote_service(options_); });
  }
  double longest_s() const override { return 2 * RemoteService::longest_s(options_); }

  TurnAnswer step(const Turn& turn) const override {
    load();
    const auto episode = concat(turn.sample_id, "-", turn.attempt);
    if (turn.number == 1) {
      const auto opening = service_->ask("reset", {{"episode", episode}, {"metadata", turn.metadata}});
      require(opening.value("messages", nlohmann::json::array()).empty(),
              "reset answered with messages, but the prompt is the data's");
    }
    const auto json = service_->ask(
        "step", {{"episode", episode}, {"turn", turn.number}, {"text", turn.text}, {"metadata", turn.metadata}});
    TurnAnswer answer;
    try {
      for (const auto& message : json.value("messages", nlohmann::json::array()))
        answer.messages.emplace_back(message.at("role"), message.at("content"));
      answer.reward = json.value("reward", 0.0);
      answer.done = json.value("done", false);
    } catch (const nlohmann::json::exception& error) {
      fail("the answer is no {messages, reward, done}: ", error.what());
    }
    return answer;
  }

 private:
  RemoteOptions options_;
  mutable std::once_flag opened_;
  mutable std::shared_ptr<RemoteService> service_;
};

std::mutex kinds_mutex;
std::map<std::string, EnvironmentFactory>& kinds() {
  static std::map<std::string, EnvironmentFactory> list{
      {"calculator", [](const EnvironmentOptions&) -> std::unique_ptr<Environment> { return make_calculator(); }},
      {"remote",
       [](const EnvironmentOptions& options) -> std::unique_ptr<Environment> {
         return std::make_unique<RemoteEnvironment>(options);
       }},
  };
  return list;
}

}  // namespace

nlohmann::json to_json(const EnvironmentOptions& options) {
  return {{"kind", options.kind},
          {"max_turns", options.max_turns},
          {"timeout_s", options.timeout_s},
          {"address", options.remote.address},
          {"command", options.remote.command},
          {"reconnect_s", options.remote.reconnect_s},
          {"num_parallel", options.remote.num_parallel}};
}

EnvironmentOptions parse_environment_options(const nlohmann::json& json) {
  EnvironmentOptions options;
  options.kind = json.at("kind");
  options.max_turns = json.at("max_turns");
  options.timeout_s = json.at("timeout_s");
  options.remote.address = json.at("address");
  options.remote.command = json.at("command");
  options.remote.reconnect_s = json.at("reconnect_s");
  options.remote.num_parallel = json.at("num_parallel");
  return options;
}

std::shared_ptr<const Environment> make_environment(const EnvironmentOptions& options) {
  if (options.kind.empty()) return nullptr;
  EnvironmentFactory factory = nullptr;
  std::vector<std::string> names;
  {
    const std::scoped_lock lock(kinds_mutex);
    for (const auto& [name, make] : kinds()) {
      names.push_back(name);
      if (name == options.kind) factory = make;
    }
  }
  if (factory == nullptr)
    throw UsageError(concat("environment.kind = \"", options.kind, "\" is not known; known: ", join(names, ", ")));
  if (options.max_turns < 1) throw UsageError(concat("environment.max_turns = ", options.max_turns, " is below 1"));
  if (!(options.timeout_s > 0))
    throw UsageError(concat("environment.timeout_s = ", options.timeout_s, " is not above 0"));
  return factory(options);
}

void register_environment_kind(const std::string& kind, EnvironmentFactory factory) {
  const std::scoped_lock lock(kinds_mutex);
  require(kinds().emplace(kind, factory).second, "there is an environment \"", kind, "\" already");
}

}  // namespace troupe
