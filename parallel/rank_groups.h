// The groups of one rank of the mesh (parallel/mesh.h says who is in which).
#pragma once

#include "parallel/collectives.h"
#include "parallel/mesh.h"

namespace troupe {

class RankGroups {
 public:
  using ByName = std::map<std::string, std::shared_ptr<Collectives>>;  // as Mesh::groups names them
  RankGroups(MeshDegrees degrees, int rank, ByName groups);
  /// One copy of the model, sharded over the ranks of `collectives`, which must outlive this.
  explicit RankGroups(Collectives& collectives);

  const MeshDegrees& degrees() const { return mesh_.degrees(); }
  const MeshPlace& place() const { return place_; }

  Collectives& world() const { return *groups_.at("world"); }
  Collectives& losses() const { return *groups_.at("losses"); }
  Collectives& shards() const { return *groups_.at("shards"); }
  Collectives& copy() const { return *groups_.at("copy"); }
  /// Over which the parameters of this rank's experts are sharded, where they are not sharded like all others.
  Collectives& expert_shards() const { return *groups_.at("expert_shards"); }
  /// Null where the dimension has one rank.
  Collectives* replicas() const { return find("replicas"); }
  Collectives* context() const { return find("context"); }
  Collectives* tensor() const { return find("tensor"); }
  Collectives* pipeline() const { return find("pipeline"); }
  Collectives* experts() const { return find("experts"); }
  Collectives* tied() const { return find("tied"); }  // null also between the first and the last stage

  /// Whose rows this rank works on; context, tensor and pipeline neighbours share them.
  int data_rank() const { return place_.replicate * degrees().shard + place_.shard; }
  int num_data_ranks() const { return degrees().num_data_ranks(); }
  /// What one copy does for all: checkpoints, exports, publication.
  bool is_first_replica() const { return place_.replicate == 0; }
  /// Ends the peers of every group; they end theirs in turn.
  void abort(const std::string& reason) const;

 private:
  Collectives* find(const std::string& name) const;

  Mesh mesh_;
  MeshPlace place_;
  ByName groups_;
};

/// Ranks as threads of this process; element r belongs to rank r.
std::vector<RankGroups> make_thread_groups(const MeshDegrees& degrees, std::chrono::milliseconds timeout);

}  // namespace troupe
