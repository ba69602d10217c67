// The data-parallel groups of one rank. Hybrid sharding makes replicas that each shard the whole model:
//
//   rank = replica * num_shards + shard       world:    all ranks (losses, counts: whatever data parallelism adds up)
//                                             shards:   the ranks of one replica (parameters, reduce-scatter)
//                                             replicas: the ranks that hold the same shard (gradients are summed again)
#pragma once

#include "parallel/collectives.h"

namespace troupe {

class RankGroups {
 public:
  /// Without `shards` the whole world is one replica.
  explicit RankGroups(std::unique_ptr<Collectives> world, std::unique_ptr<Collectives> shards = nullptr,
                      std::unique_ptr<Collectives> replicas = nullptr);

  Collectives& world() const { return *world_; }
  Collectives& shards() const { return shards_ == nullptr ? *world_ : *shards_; }
  /// Null where there is one replica.
  Collectives* replicas() const { return replicas_.get(); }
  int num_replicas() const { return world().size() / shards().size(); }
  /// What one replica does for all: checkpoints, exports, publication.
  bool is_first_replica() const { return world().rank() < shards().size(); }
  /// Ends the peers of every group; they end theirs in turn.
  void abort(const std::string& reason) const;

 private:
  std::unique_ptr<Collectives> world_, shards_, replicas_;
};

/// Ranks as threads of this process; element r belongs to rank r.
std::vector<RankGroups> make_thread_groups(int num_replicas, int num_shards, std::chrono::milliseconds timeout);

}  // namespace troupe
