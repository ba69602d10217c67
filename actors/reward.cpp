#include "actors/reward.h"

#include "actors/spawn.h"

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
  caf::result<int32_t> score(const Packed& packed) {
    Packed scored;
    {
      Trace::Span busy(*trace_, "reward", "score");
      auto trajectory = unpack_trajectory(std::as_bytes(std::span(packed.bytes)));
      score_(trajectory);
      const auto bytes = pack_trajectory(trajectory);
      scored.bytes.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
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
