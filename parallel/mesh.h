// The mesh of ranks: which rank stands where, and which ranks form a group in each dimension. Arithmetic only; the
// groups' collectives are made by parallel/rank_groups.
//
//   rank = (((pipeline * replicates + replicate) * shards + shard) * contexts + context) * tensors + tensor
//
// Neighbours in the last dimension talk most (every layer), those in the first least (once a micro-batch).
//
// Experts are spread over the same ranks, cut another way: the shard, context and tensor ranks of a stage and replica,
// numbered as above, are
//
//   shard * context * tensor = expert shards * experts       (number in the stage = expert_shard * experts + expert)
#pragma once

#include <string>
#include <vector>

namespace troupe {

struct MeshDegrees {
  int pipeline = 1;   // stages of layers
  int replicate = 1;  // copies of the model (hybrid sharding)
  int shard = 1;      // ranks over which a copy's parameters are sharded, each with rows of its own
  int context = 1;    // ranks that share a row's tokens
  int tensor = 1;     // ranks that share a layer's products
  int expert = 1;     // of the shard, context and tensor ranks: those that share a layer's experts

  int num_ranks() const { return pipeline * replicate * shard * context * tensor; }
  /// Over which a stage's experts lie: `expert` of them hold all, in as many shards as that leaves.
  int num_expert_ranks() const { return shard * context * tensor; }
  /// Ranks with rows of their own: what data is dealt to.
  int num_data_ranks() const { return replicate * shard; }
  bool operator==(const MeshDegrees&) const = default;
};

/// "pipeline 2 * replicate 1 * shard 2 * context 1 * tensor 2 = 8", and where experts are spread ", experts 2 * 2
/// shards = shard 2 * context 1 * tensor 2".
std::string describe(const MeshDegrees& degrees);
/// Throws UsageError, the arithmetic shown: a degree below 1, more than `max_ranks` ranks together, or an expert degree
/// that does not divide the ranks that it spreads experts over.
void check_mesh(const MeshDegrees& degrees, int max_ranks);

struct MeshPlace {
  int pipeline = 0, replicate = 0, shard = 0, context = 0, tensor = 0;
  int expert = 0;  // which part of the experts; follows from the others
  bool operator==(const MeshPlace&) const = default;
};

/// Ranks that communicate, in the order of their rank in the group.
struct MeshGroup {
  std::string name;  // of the dimension: "tensor", ...
  std::vector<int> members;
};

class Mesh {
 public:
  explicit Mesh(MeshDegrees degrees = {}) : degrees_(degrees) {}
  const MeshDegrees& degrees() const { return degrees_; }
  MeshPlace place(int rank) const;
  int rank(const MeshPlace& place) const;

  /// The groups of every rank; each rank is in exactly one of each name, but for "tied".
  ///   world     all ranks
  ///   losses    those whose losses add up: replicate, shard and context
  ///   shards    those over which parameters are sharded: shard and context
  ///   replicas  those that hold the same shard: replicate
  ///   copy      the ranks of one whole copy of the model: all but replicate
  ///   context, tensor, pipeline   the dimension alone
  ///   experts        those that hold a layer's experts together: tokens go between them
  ///   expert_shards  those over which the parameters of one part of the experts are sharded
  ///   tied      first and last pipeline stage (for embeddings that both hold); only with a pipeline
  std::vector<MeshGroup> groups() const;

 private:
  int number_in_stage(const MeshPlace& place) const;  // among shard, context and tensor ranks

  MeshDegrees degrees_;
};

}  // namespace troupe
