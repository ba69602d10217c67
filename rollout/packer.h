// Plans how a snapshot's weights become panels: which rows of which tensors form which matrix, and where it lies.
// Private to rollout/.
#pragma once

#include "models/weights.h"
#include "rollout/packed_decoder.h"

namespace troupe {

inline int64_t num_panels_for(int64_t rows) { return (rows + kPanelColumns - 1) / kPanelColumns; }

/// One tensor to pack into a matrix: its panels are interleaved with those of others where `panel_stride` is above 1.
template <class T>
struct PackJob {
  Tensor weight;  // [N, K], float32 or bfloat16, contiguous
  PackedMatrix<T>* matrix = nullptr;
  int64_t panel_stride = 1, position = 0;
};

template <class T>
class Packer {
 public:
  /// The snapshot holds every parameter of the configuration, in its shape.
  Packer(const ModelConfig& config, const WeightSnapshot& snapshot, PackedDecoder<T>& model)
      : config_(config), snapshot_(snapshot), model_(model) {}

  /// Fills the model's vectors, takes its memory and places its matrices in it; their panels are the jobs' matter.
  void plan();
  const std::vector<PackJob<T>>& jobs() const { return jobs_; }

 private:
  const Tensor* find(const std::string& name) const;
  Tensor get(const std::string& name) const;
  std::vector<float> vector(const std::string& name) const;
  /// Of a norm, as the factor that it stands for.
  std::vector<float> norm(const std::string& prefix, const std::string& name) const;
  /// `matrix` with the rows of `parts` one below the other, or their panels by turns.
  void plan_matrix(PackedMatrix<T>& matrix, std::vector<Tensor> parts, bool by_turns = false);
  void plan_mlp(PackedMlp<T>& mlp, const Tensor& gate, const Tensor& up, const Tensor& down);
  void plan_named_mlp(PackedMlp<T>& mlp, const std::string& prefix);
  void plan_layer(int64_t index);
  void plan_attention(PackedAttention<T>& attention, const std::string& prefix);
  void plan_latent(PackedLatent<T>& latent, const std::string& prefix);
  void plan_delta(PackedDelta<T>& delta, const std::string& prefix);
  void plan_experts(PackedExperts<T>& experts, const std::string& prefix);
  void place();

  const ModelConfig& config_;
  const WeightSnapshot& snapshot_;
  PackedDecoder<T>& model_;
  std::vector<PackJob<T>> jobs_;
  std::vector<std::pair<PackedMatrix<T>*, size_t>> offsets_;
  size_t elements_ = 0;
};

extern template class Packer<float>;
extern template class Packer<Bf16>;

}  // namespace troupe
