#include "rollout/remote_reward.h"

#include <cmath>
#include <mutex>

#include "base/error.h"
#include "rollout/remote.h"

namespace troupe {
namespace {

class RemoteReward : public RewardFunction {
 public:
  explicit RemoteReward(const RewardOptions& options) {
    const auto& settings = options.settings;
    options_.address = settings.at("address");
    options_.command = settings.at("command");
    options_.timeout_s = options.timeout_s;
    options_.reconnect_s = settings.at("reconnect_s");
    options_.num_parallel = settings.at("num_parallel");
    check_remote_options(options_, "reward " + options.name);
  }
  void load() const override {
    std::call_once(opened_, [this] { service_ = open_remote_service(options_); });
  }
  double longest_s() const override { return RemoteService::longest_s(options_); }

  double score(const Trajectory& trajectory, const nlohmann::json& metadata) const override {
    load();
    const auto answer = service_->ask("score", {{"sample", trajectory.sample_id},
                                                {"attempt", trajectory.attempt},
                                                {"completion", trajectory.completion_text},
                                                {"num_tokens", trajectory.num_sampled_tokens()},
                                                {"num_turns", trajectory.num_turns},
                                                {"finish_reason", to_string(trajectory.finish_reason)},
                                                {"metadata", metadata}});
    const auto value = answer.find("value");
    require(value != answer.end(), "the answer holds neither value nor error");
    require(value->is_number(), "the value is ", value->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace),
            ", not a number");
    return value->get<double>();
  }

 private:
  RemoteOptions options_;
  mutable std::once_flag opened_;
  mutable std::shared_ptr<RemoteService> service_;
};

}  // namespace

std::unique_ptr<RewardFunction> make_remote_reward(const RewardOptions& options) {
  return std::make_unique<RemoteReward>(options);
}

}  // namespace troupe
