// What the parts of the CPU forward pass share during a step: the rows, their buffers, the cache and the team of
// threads. Private to rollout/.
//
// Every thread walks through the same stages (rollout/thread_team.h); a part takes a Walk and leaves it behind its last
// stage. A row's arithmetic never depends on the other rows.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "models/kernels/decode_sampling.h"
#include "rollout/forward_pass.h"
#include "rollout/packed_decoder.h"
#include "rollout/thread_team.h"

namespace troupe {

inline constexpr int64_t kRowChunk = 64;  // rows whose partial results stay in the first-level cache

inline int64_t round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

/// Of a head's narrowed row in latent attention: its plain query, then what it gathered. An even number, as bf16
/// products take pairs.
inline int64_t latent_narrow_size(const LatentConfig& sizes) {
  return round_up(std::max(sizes.key_value_rank + sizes.rotary_dim, sizes.plain_dim), 2);
}

/// Memory aligned to a cache line.
template <class T>
class Buffer {
 public:
  void resize(int64_t size) {
    storage_.resize(static_cast<size_t>(size) + 64 / sizeof(T));
    const auto address = reinterpret_cast<uintptr_t>(storage_.data());
    data_ = storage_.data() + (64 - address % 64) % 64 / sizeof(T);
  }
  T* data() { return data_; }

 private:
  std::vector<T> storage_;
  T* data_ = nullptr;
};

/// Rows of a buffer, padded so that they keep off each other's cache sets where their size is a power of two.
template <class T>
struct Rows {
  Buffer<T> buffer;
  int64_t stride = 0;
  void resize(int64_t count, int64_t width) {
    constexpr int64_t kPad = 32;
    stride = round_up(width, kPanelColumns) + kPad;
    buffer.resize(count * stride);
  }
  T* row(int64_t r) { return buffer.data() + r * stride; }
};

/// One thread's way through the stages of a step.
struct Walk {
  int thread = 0, stage = 0;
};

/// Where a layer's part of the cache lies, in elements: regions (keys and values, or one) of blocks.
struct LayerCache {
  int64_t offset = 0, num_regions = 0, region_elements = 0, block_elements = 0;
  int64_t num_heads = 0, head_elements = 0;      // a block holds [heads][block tokens][head elements]
  int64_t state_offset = 0, state_elements = 0;  // recurrent state of one slot, floats
};

template <class T>
struct ForwardState {
  ForwardState(const ModelConfig& model_config, const ForwardOptions& forward_options);

  const TypedDecodeKernels<T>& typed() const { return typed_kernels<T>(kernels); }
  int64_t num_rows() const { return static_cast<int64_t>(rows->size()); }
  float epsilon() const { return static_cast<float>(config.rms_norm_eps); }
  T* cache_region(int64_t layer, int64_t region) {
    const auto& place = caches[static_cast<size_t>(layer)];
    return reinterpret_cast<T*>(cache.data()) + place.offset + region * place.region_elements;
  }
  float* recurrent_state(int64_t layer, int64_t slot) {
    const auto& place = caches[static_cast<size_t>(layer)];
    return reinterpret_cast<float*>(states.data()) + place.state_offset + slot * place.state_elements;
  }

  template <class Work>
  void share(Walk& walk, int64_t count, int64_t piece, Work&& work) {
    team.share(walk.thread, walk.stage++, count, piece, std::forward<Work>(work));
  }

  /// input = residual normalised (empty weight: as it is).
  void normalise(Walk& walk, const std::vector<float>& weight);
  /// out row r = a row r * matrix^T, as floats.
  void multiply(Walk& walk, const PackedMatrix<T>& matrix, const T* a, int64_t a_stride, Rows<float>& out);
  /// residual += a * matrix^T + bias, normalised by `norm` first where that is not empty.
  void add_product(Walk& walk, const PackedMatrix<T>& matrix, const T* a, int64_t a_stride,
                   const std::vector<float>& bias, const std::vector<float>& norm);

  const ModelConfig config;
  const ForwardOptions options;
  const DecodeKernels& kernels = decode_kernels();
  ThreadTeam team;
  std::vector<LayerCache> caches;
  PageMemory cache, states;

  struct PerThread {
    Buffer<float> product, scores;
    SamplingScratch sampling;
  };
  std::vector<PerThread> per_thread;
  int64_t scores_stride = 0;
  Rows<float> residual, wide, output;  // wide: projections before they are narrowed; output: before a norm
  Rows<T> input, narrow, activation;
  struct Rotations {
    std::vector<float> cosines, sines;
    int64_t count = 0;
  };
  Rotations main_rotations, local_rotations;  // of every position so far asked for
  struct Routed {                             // experts: of each row and choice, then sorted by expert
    Rows<float> logits;
    std::vector<int32_t> experts, slots, rows;
    std::vector<float> weights;
    std::vector<int64_t> begins;  // by expert, and the end
    Rows<T> input, activation;
    Rows<float> output;
  } routed;
  std::vector<int64_t> sequence_begins;  // first rows of sequences, and the end; with recurrent states

  // of the step under way
  const PackedDecoder<T>* model = nullptr;
  const std::vector<Row>* rows = nullptr;
};

template <class T>
void run_attention(ForwardState<T>& state, Walk& walk, int64_t layer_index);
template <class T>
void run_latent_attention(ForwardState<T>& state, Walk& walk, int64_t layer_index);
template <class T>
void run_delta_net(ForwardState<T>& state, Walk& walk, int64_t layer_index);
/// The MLP or the experts of a layer, from `input` to the residual.
template <class T>
void run_mlp(ForwardState<T>& state, Walk& walk, int64_t layer_index);
template <class T>
void run_experts(ForwardState<T>& state, Walk& walk, int64_t layer_index);

/// How gate and up are joined.
struct GateRule {
  Activation activation = Activation::kSilu;
  float clamp_limit = 0, swish_factor = 1;  // see MoeConfig
};
/// out [columns <= kPanelColumns] from sums of gate and up.
template <class T>
void join_gate_up(const DecodeKernels& kernels, const GateRule& rule, float* gate, const float* up, int64_t columns,
                  T* out);
/// Panel `pair` of gate and up of `mlp` for `count` rows of x; `scratch` holds 2 * kRowChunk panels.
template <class T>
void gate_panel(const DecodeKernels& kernels, const GateRule& rule, const PackedMlp<T>& mlp, int64_t pair, const T* x,
                int64_t x_stride, int64_t count, float* scratch, T* out, int64_t out_stride);

/// The experts of one row by its logits (kernels of the router): ids and weights [experts per token].
void choose_experts(const MoeConfig& config, const std::vector<float>& choice_bias, const float* logits,
                    int32_t* experts, float* weights);

/// Where each layer's cache and recurrent states lie; {cache elements, state floats} in all.
std::pair<int64_t, int64_t> lay_out_caches(const ModelConfig& config, int64_t num_blocks, int64_t block_tokens,
                                           int64_t num_states, std::vector<LayerCache>& caches);

}  // namespace troupe
