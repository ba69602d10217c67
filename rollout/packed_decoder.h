// What a PackedModel holds: panels (models/kernels/decode_kernels.h) of every weight matrix in one block of memory, in
// the order in which a decode step reads them. Private to rollout/; others know packed_model.h.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "models/kernels/decode_kernels.h"
#include "rollout/packed_model.h"

namespace troupe {

/// Memory of whole pages, aligned to and backed by large ones where the system grants them; zero at first.
class PageMemory {
 public:
  explicit PageMemory(size_t bytes);
  ~PageMemory();
  PageMemory(const PageMemory&) = delete;
  PageMemory& operator=(const PageMemory&) = delete;
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

/// Pages for a model that is about to be packed: those of a version that nobody reads any more where they fit, for the
/// kernel takes longer to clear fresh ones than packing takes. What is in them is undefined.
std::unique_ptr<PageMemory> take_pages(size_t bytes);
/// Keeps one block for the next version.
void give_pages(std::unique_ptr<PageMemory> pages);

/// One weight [N, K] as panels.
template <class T>
struct PackedMatrix {
  const T* panels = nullptr;
  int64_t num_panels = 0;
  int64_t depth = 0;  // K, even for Bf16
  int64_t panel_elements() const { return depth * kPanelColumns; }
  const T* panel(int64_t index) const { return panels + index * panel_elements(); }
};

/// A gated MLP. Vectors are fp32; biases are empty where the model has none, those of a matrix are padded to its
/// panels.
template <class T>
struct PackedMlp {
  PackedMatrix<T> gate_up;  // panels of gate and up take turns
  PackedMatrix<T> down;
  std::vector<float> gate_bias, up_bias, down_bias;
  int64_t size = 0;
};

template <class T>
struct PackedExperts {
  PackedMatrix<T> router;
  std::vector<float> router_bias, choice_bias;
  std::vector<PackedMlp<T>> experts;
  PackedMlp<T> shared;          // size 0: none
  PackedMatrix<T> shared_gate;  // one row; no panels: none
};

/// Rows of the projection are those of q, k, v and, where heads have one, the gate.
template <class T>
struct PackedAttention {
  PackedMatrix<T> projection;
  std::vector<float> bias, query_norm, key_norm, sinks;
};

/// Latent attention with the expansion of keys and values taken to the other side: a head's query meets the compressed
/// key, and what it gathers of compressed values is expanded afterwards.
template <class T>
struct PackedLatent {
  PackedMatrix<T> query_down, query;  // no query_down: queries are projected at once
  std::vector<float> query_down_bias, query_norm;
  PackedMatrix<T> key_value_down;
  std::vector<float> key_value_down_bias, key_value_norm;
  std::vector<PackedMatrix<T>> query_to_latent, latent_to_value;  // by head
};

/// Rows of the projection are queries, keys, values, z, b, a.
template <class T>
struct PackedDelta {
  PackedMatrix<T> projection;
  std::vector<float> convolution;  // [kernel][channel]
  std::vector<float> decay_rate;   // exp(A_log)
  std::vector<float> dt_bias, norm;
};

template <class T>
struct PackedLayer {
  std::vector<float> mixer_input_norm, mixer_output_norm, mlp_input_norm, mlp_output_norm;  // empty: none
  PackedAttention<T> attention;
  PackedLatent<T> latent;
  PackedDelta<T> delta;
  PackedMatrix<T> output;  // of the mixer
  std::vector<float> output_bias;
  PackedMlp<T> mlp;
  PackedExperts<T> experts;
};

template <class T>
class PackedDecoder final : public PackedModel {
 public:
  int64_t version() const override { return version_; }
  int64_t bytes() const override { return static_cast<int64_t>(memory->bytes()); }
  at::ScalarType dtype() const override { return sizeof(T) == 2 ? at::kBFloat16 : at::kFloat; }
  const ModelConfig& config() const override { return config_; }

  explicit PackedDecoder(ModelConfig config, int64_t version) : config_(std::move(config)), version_(version) {}
  ~PackedDecoder() override {
    if (memory != nullptr) give_pages(std::move(memory));
  }

  std::unique_ptr<PageMemory> memory;
  std::vector<PackedLayer<T>> layers;
  std::vector<float> final_norm;
  PackedMatrix<T> head;
  PackedMatrix<T> embedding;  // equals head where tied: a token's row is gathered from its panel
  std::vector<float> inverse_frequencies, local_inverse_frequencies;

 private:
  ModelConfig config_;
  int64_t version_;
};

}  // namespace troupe
