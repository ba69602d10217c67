#include "parallel/rank_groups.h"

#include "base/error.h"

namespace troupe {

RankGroups::RankGroups(MeshDegrees degrees, int rank, ByName groups)
    : mesh_(degrees), place_(mesh_.place(rank)), groups_(std::move(groups)) {}

RankGroups::RankGroups(Collectives& collectives)
    : mesh_({.shard = collectives.size()}), place_(mesh_.place(collectives.rank())) {
  const std::shared_ptr<Collectives> shared(std::shared_ptr<void>(), &collectives);
  for (const char* name : {"world", "losses", "shards", "copy", "expert_shards"}) groups_[name] = shared;
}

Collectives* RankGroups::find(const std::string& name) const {
  const auto found = groups_.find(name);
  return found == groups_.end() || found->second->size() == 1 ? nullptr : found->second.get();
}

void RankGroups::abort(const std::string& reason) const {
  for (const auto& [name, group] : groups_) group->abort(reason);
}

std::vector<RankGroups> make_thread_groups(const MeshDegrees& degrees, std::chrono::milliseconds timeout) {
  std::vector<RankGroups::ByName> by_rank(static_cast<size_t>(degrees.num_ranks()));
  // Dimensions with the same members share one group.
  std::map<std::vector<int>, std::vector<std::shared_ptr<Collectives>>> made;
  for (const auto& group : Mesh(degrees).groups()) {
    auto& ranks = made[group.members];
    if (ranks.empty()) {
      for (auto& rank : make_thread_collectives(static_cast<int>(group.members.size()), timeout))
        ranks.push_back(std::move(rank));
    }
    for (size_t member = 0; member < group.members.size(); ++member)
      by_rank[static_cast<size_t>(group.members[member])][group.name] = ranks[member];
  }
  std::vector<RankGroups> result;
  for (size_t rank = 0; rank < by_rank.size(); ++rank)
    result.emplace_back(degrees, static_cast<int>(rank), std::move(by_rank[rank]));
  return result;
}

}  // namespace troupe
