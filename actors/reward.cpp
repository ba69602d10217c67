#include "actors/reward.h"

#include <cmath>

#include "actors/spawn.h"
#include "base/error.h"

namespace troupe {
namespace {

class RewardState {
 public:
  using Pointer = reward_actor::stateful_pointer<RewardState>;
  static constexpr const char* name = "reward";

  explicit RewardState(Pointer self) : self_(self) {}

  reward_actor::behavior_type start(buffer_actor buffer, RewardSetup setup) {
    buffer_ = std::move(buffer);
    trace_ = std::move(setup.trace);
    score_ = setup.make_score();
    return {[this](atom::score, const Packed& packed) { return score(packed); }};
  }

 private:
  /// What one sample does to the rules is that sample's failure; the actor goes on.
  caf::result<int32_t> score(const Packed& packed) {
    Packed scored;
    try {
      Trace::Span busy(*trace_, "reward", "score");
      auto trajectory = unpack_trajectory(std::as_bytes(std::span(packed.bytes)));
      const auto id = trajectory.sample_id;
      const auto attempt = trajectory.attempt;
      score_(trajectory);
      require(trajectory.sample_id == id && trajectory.attempt == attempt, "the answer is for sample ",
              trajectory.sample_id, ", attempt ", trajectory.attempt, ", not ", id, ", attempt ", attempt);
      require(!trajectory.total_reward || std::isfinite(*trajectory.total_reward), "the total reward of sample ", id,
              " is not finite");
      const auto bytes = pack_trajectory(trajectory);
      scored.bytes.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    } catch (const std::exception& error) {
      return caf::make_error(ec::failed, std::string("reward: ") + error.what());
    }
    return self_->delegate(buffer_, atom::store_v, std::move(scored));
  }

  Pointer self_;
  buffer_actor buffer_;
  std::shared_ptr<Trace> trace_;
  ScoreFunction score_;
};

}  // namespace

reward_actor spawn_reward(caf::actor_system& system, buffer_actor buffer, RewardSetup setup) {
  const bool detached = setup.detached;
  return spawn_worker<reward_actor, RewardState>(detached, system, std::move(buffer), std::move(setup));
}

}  // namespace troupe
