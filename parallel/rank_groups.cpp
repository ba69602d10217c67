#include "parallel/rank_groups.h"

#include "base/error.h"

namespace troupe {

RankGroups::RankGroups(std::unique_ptr<Collectives> world, std::unique_ptr<Collectives> shards,
                       std::unique_ptr<Collectives> replicas)
    : world_(std::move(world)), shards_(std::move(shards)), replicas_(std::move(replicas)) {}

void RankGroups::abort(const std::string& reason) const {
  for (const auto* group : {&world_, &shards_, &replicas_}) {
    if (*group != nullptr) (*group)->abort(reason);
  }
}

std::vector<RankGroups> make_thread_groups(int num_replicas, int num_shards, std::chrono::milliseconds timeout) {
  require(num_replicas > 0 && num_shards > 0, "a group of ", num_replicas, " replicas of ", num_shards, " shards");
  auto world = make_thread_collectives(num_replicas * num_shards, timeout);
  std::vector<RankGroups> ranks;
  if (num_replicas == 1) {
    for (auto& rank : world) ranks.emplace_back(std::move(rank));
    return ranks;
  }
  std::vector<std::vector<std::unique_ptr<Collectives>>> by_replica, by_shard;
  for (int replica = 0; replica < num_replicas; ++replica)
    by_replica.push_back(make_thread_collectives(num_shards, timeout));
  for (int shard = 0; shard < num_shards; ++shard) by_shard.push_back(make_thread_collectives(num_replicas, timeout));
  for (size_t rank = 0; rank < world.size(); ++rank) {
    const auto replica = rank / static_cast<size_t>(num_shards), shard = rank % static_cast<size_t>(num_shards);
    ranks.emplace_back(std::move(world[rank]), std::move(by_replica[replica][shard]),
                       std::move(by_shard[shard][replica]));
  }
  return ranks;
}

}  // namespace troupe
