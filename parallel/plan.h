// The plan by which a network is laid over the mesh: which part of every parameter a rank holds, which units belong to
// its pipeline stages, and whose gradients have to be added up. Applied from outside: the network is built from the
// rank's own configuration (fewer heads, a narrower MLP, some rows of the vocabulary) and knows nothing of it.
//
//   split of a layer over tensor ranks (Shoeybi et al. 2019, "Megatron-LM"):
//     q, k, v, gate, up   by rows (heads, features): outputs are parts        embedding, head  by rows (vocabulary)
//     o, down             by columns: outputs are summed over ranks           norms, row biases  whole on every rank
//     of latent attention the projections to heads by rows; those that compress are whole and done by every rank
//
// Experts are not split but spread: every expert rank holds an equal number of whole experts.
#pragma once

#include "models/config.h"
#include "parallel/mesh.h"
#include "parallel/tensor_slices.h"

namespace troupe {

struct PlanOptions {
  /// Between layers every tensor rank keeps a part of the tokens (Korthikanti et al. 2022); else all keep all.
  bool sequence_parallel = true;
  /// Units [begin, end) of each pipeline stage in order, and the pipeline rank that holds it; empty: one stage.
  struct Stage {
    int64_t begin = 0, end = 0;
    int rank = 0;
  };
  std::vector<Stage> stages;
};

/// A rank's part of one parameter.
struct ParameterPart {
  TensorBox box;                  // of the whole parameter
  bool is_first = true;           // of the ranks that hold this part: counted in norms and written to checkpoints
  bool sums_over_tensor = false;  // every tensor rank has only a part of its gradient
  bool sums_over_tied = false;    // first and last pipeline stage each have a part of its gradient
};

class ParallelPlan {
 public:
  /// One rank that holds everything.
  explicit ParallelPlan(const ModelConfig& config) : ParallelPlan(config, {}, {}, {}) {}
  /// Throws UsageError where heads, features or layers cannot be split so, naming the numbers.
  ParallelPlan(const ModelConfig& config, MeshDegrees degrees, MeshPlace place, PlanOptions options);

  const ModelConfig& whole_config() const { return config_; }
  /// Of this rank's network.
  const ModelConfig& local_config() const { return local_config_; }
  const std::vector<ParameterSpec>& whole_specs() const { return specs_; }
  const MeshDegrees& degrees() const { return degrees_; }
  const MeshPlace& place() const { return place_; }
  const PlanOptions& options() const { return options_; }

  /// The part that tensor rank `tensor_rank` of this pipeline stage holds.
  ParameterPart part(const ParameterSpec& whole, int tensor_rank) const;
  ParameterPart part(const ParameterSpec& whole) const { return part(whole, place_.tensor); }
  /// Whether the weights of experts lie over ranks of their own (Mesh: "experts", "expert_shards"), apart from the rest
  /// of their units.
  bool spreads_experts() const { return config_.has_experts() && (degrees_.expert > 1 || degrees_.tensor > 1); }
  /// The part of experts' weights that expert rank `expert_rank` holds; none where it holds none of them.
  std::optional<ParameterPart> part_of_experts(const ParameterSpec& whole, int expert_rank) const;
  /// Whether this rank holds the unit's parameters (a tied embedding on the first and on the last stage).
  bool holds(int64_t unit) const;
  /// The pipeline rank that speaks for a unit.
  int owner(int64_t unit) const;
  /// Stages of this pipeline rank, in order.
  std::vector<PlanOptions::Stage> own_stages() const;
  int64_t num_units() const { return config_.num_hidden_layers + 2; }
  /// Rows of the vocabulary that this rank holds: [begin, begin + local_config().vocab_size).
  int64_t vocabulary_begin() const { return even_begin(config_.vocab_size, place_.tensor); }
  bool is_tied() const { return config_.tie_word_embeddings && config_.num_labels == 0; }

 private:
  int64_t even_begin(int64_t size, int tensor_rank) const { return size * tensor_rank / degrees_.tensor; }
  void check_splits() const;
  void check_context() const;
  void check_tensor() const;
  void check_experts() const;

  ModelConfig config_, local_config_;
  std::vector<ParameterSpec> specs_;
  MeshDegrees degrees_;
  MeshPlace place_;
  PlanOptions options_;
};

}  // namespace troupe
