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

template <class T>
struct PackedLayer {
  PackedMatrix<T> query_key_value;  // rows of q, k, v one after the other
  PackedMatrix<T> output;
  PackedMatrix<T> gate_up;  // panels of gate and up take turns
  PackedMatrix<T> down;
  // fp32; biases are empty where the model has none, those of a matrix are padded to its panels
  std::vector<float> input_norm, post_attention_norm, query_norm, key_norm;
  std::vector<float> query_key_value_bias, output_bias, gate_bias, up_bias, down_bias;
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
  std::vector<float> inverse_frequencies;

 private:
  ModelConfig config_;
  int64_t version_;
};

}  // namespace troupe
