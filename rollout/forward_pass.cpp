// The forward pass on the CPU: embedding, the layers' parts in their order, and the head.
#include "rollout/forward_pass.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/error.h"
#include "rollout/forward_state.h"

namespace troupe {
namespace {

constexpr int kStagesAround = 4;

/// Upper bound of a layer's stages.
int stages_of(const ModelConfig& config, const LayerConfig& layer) {
  const bool has_output_norms = !config.names.mixer_output_norm.empty() || !config.names.mlp_output_norm.empty();
  const int mixer = layer.mixer == Mixer::kLatentAttention ? 10 : layer.mixer == Mixer::kDeltaNet ? 6 : 5;
  return mixer + (layer.has_experts ? 12 : 3) + (has_output_norms ? 2 : 0);
}

template <class T>
class CpuForwardPass final : public ForwardPass {
 public:
  CpuForwardPass(const ModelConfig& config, const ForwardOptions& options)
      : s_(config, options), logits_stride_(round_up(config.vocab_size, kPanelColumns)) {
    for (int64_t i = 0; i < config.num_hidden_layers; ++i) num_stages_ += stages_of(config, config.layer(i));
  }

  void run(const PackedModel& model, const std::vector<Row>& rows, const std::vector<Draw>& draws,
           std::vector<SampledToken>& tokens) override {
    const auto* packed = dynamic_cast<const PackedDecoder<T>*>(&model);
    require(packed != nullptr, "the engine was made for weights of another dtype");
    require(static_cast<int64_t>(rows.size()) <= s_.options.max_rows, "a step of ", rows.size(), " rows is too large");
    s_.model = packed;
    s_.rows = &rows;
    draws_ = &draws;
    tokens_ = &tokens;
    tokens.assign(draws.size(), {});
    list_drawn_rows();
    list_sequences();
    fill_rotations(s_.config.rope, packed->inverse_frequencies, s_.main_rotations);
    fill_rotations(s_.config.local_rope, packed->local_inverse_frequencies, s_.local_rotations);
    s_.team.run(num_stages_, [this](int thread) { work(thread); });
    for (size_t i = 0; i < draws.size(); ++i) {
      require(tokens[i].id >= 0, "the logits at position ", rows[static_cast<size_t>(draws[i].row)].position,
              " are not finite (weights of version ", model.version(), ")");
    }
  }

  void copy_block(int32_t from, int32_t to, int64_t num_tokens) override {
    for (int64_t layer = 0; layer < s_.config.num_hidden_layers; ++layer) {
      const auto& place = s_.caches[static_cast<size_t>(layer)];
      for (int64_t region = 0; region < place.num_regions; ++region) {
        T* base = s_.cache_region(layer, region);
        for (int64_t head = 0; head < place.num_heads; ++head) {
          const int64_t offset = head * s_.options.block_tokens * place.head_elements;
          std::memcpy(base + to * place.block_elements + offset, base + from * place.block_elements + offset,
                      static_cast<size_t>(num_tokens * place.head_elements) * sizeof(T));
        }
      }
    }
  }

  void copy_state(int32_t from, int32_t to) override {
    for (int64_t layer = 0; layer < s_.config.num_hidden_layers; ++layer) {
      const auto size = static_cast<size_t>(s_.caches[static_cast<size_t>(layer)].state_elements);
      if (size > 0) {
        std::memcpy(s_.recurrent_state(layer, to), s_.recurrent_state(layer, from), size * sizeof(float));
      }
    }
  }

 private:
  void list_drawn_rows() {
    logit_rows_.clear();
    logit_index_of_row_.assign(s_.rows->size(), -1);
    for (const auto& draw : *draws_) {
      int32_t& index = logit_index_of_row_[static_cast<size_t>(draw.row)];
      if (index >= 0) continue;
      index = static_cast<int32_t>(logit_rows_.size());
      logit_rows_.push_back(draw.row);
    }
    const int64_t needed = static_cast<int64_t>(logit_rows_.size()) * logits_stride_;
    if (needed > logits_size_) logits_.resize(logits_size_ = needed);
  }

  void list_sequences() {
    s_.sequence_begins.clear();
    if (s_.options.num_states == 0) return;
    for (int64_t r = 0; r < s_.num_rows(); ++r) {
      const auto& rows = *s_.rows;
      const bool is_first = r == 0 || rows[static_cast<size_t>(r)].state != rows[static_cast<size_t>(r - 1)].state;
      if (is_first) s_.sequence_begins.push_back(r);
    }
    s_.sequence_begins.push_back(s_.num_rows());
  }

  /// Cosines and sines of all positions so far asked for; angles are position * frequency in fp32 as in the trainer.
  void fill_rotations(const RopeConfig& rope, const std::vector<float>& inverse_frequencies,
                      typename ForwardState<T>::Rotations& rotations) const {
    const auto scale = static_cast<float>(rope.attention_factor);
    for (const auto& row : *s_.rows) {
      for (; rotations.count <= row.position; ++rotations.count) {
        for (const float frequency : inverse_frequencies) {
          const float angle = static_cast<float>(rotations.count) * frequency;
          rotations.cosines.push_back(std::cos(angle) * scale);
          rotations.sines.push_back(std::sin(angle) * scale);
        }
      }
    }
  }

  // ---- one thread's way through the step ----

  void work(int thread) {
    Walk walk{thread, 0};
    s_.share(walk, s_.num_rows(), 8, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) embed((*s_.rows)[static_cast<size_t>(r)].token, s_.residual.row(r));
    });
    for (int64_t index = 0; index < s_.config.num_hidden_layers; ++index) {
      const auto& layer = s_.model->layers[static_cast<size_t>(index)];
      const auto& description = s_.config.layer(index);
      s_.normalise(walk, layer.mixer_input_norm);
      switch (description.mixer) {
        case Mixer::kAttention:
          run_attention(s_, walk, index);
          break;
        case Mixer::kLatentAttention:
          run_latent_attention(s_, walk, index);
          break;
        case Mixer::kDeltaNet:
          run_delta_net(s_, walk, index);
          break;
      }
      s_.normalise(walk, layer.mlp_input_norm);
      if (description.has_experts) {
        run_experts(s_, walk, index);
      } else {
        run_mlp(s_, walk, index);
      }
    }
    compute_logits(walk);
    s_.share(walk, static_cast<int64_t>(draws_->size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const Draw& draw = (*draws_)[static_cast<size_t>(i)];
        const float* logits = logits_.data() + logit_index_of_row_[static_cast<size_t>(draw.row)] * logits_stride_;
        (*tokens_)[static_cast<size_t>(i)] =
            sample_token(s_.kernels, logits, s_.options.vocab_size, draw.rule, draw.uniform,
                         s_.per_thread[static_cast<size_t>(thread)].sampling);
      }
    });
  }

  void compute_logits(Walk& walk) {
    const auto& model = *s_.model;
    const int64_t num_logit_rows = static_cast<int64_t>(logit_rows_.size());
    s_.share(walk, num_logit_rows, 8, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        s_.typed().rms_norm(s_.residual.row(logit_rows_[static_cast<size_t>(i)]), model.final_norm.data(),
                            s_.config.hidden_size, s_.epsilon(), s_.input.row(i));
      }
    });
    const auto cap = static_cast<float>(s_.config.logit_softcap);
    s_.share(walk, model.head.num_panels, 4, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        float* out = logits_.data() + p * kPanelColumns;
        s_.typed().gemm_panel(s_.input.row(0), s_.input.stride, num_logit_rows, model.head.panel(p), model.head.depth,
                              out, logits_stride_);
        for (int64_t r = 0; cap > 0 && r < num_logit_rows; ++r) {
          float* row = out + r * logits_stride_;
          for (int64_t i = 0; i < kPanelColumns; ++i) row[i] = std::tanh(row[i] / cap) * cap;
        }
      }
    });
  }

  /// A token's embedding, gathered from its panel's column.
  void embed(int32_t token, float* to) const {
    const auto& matrix = s_.model->embedding;
    const T* panel = matrix.panel(token / kPanelColumns);
    const int64_t column = token % kPanelColumns, hidden = s_.config.hidden_size;
    float scale = static_cast<float>(s_.config.embedding_scale);
    if constexpr (!std::is_same_v<T, float>) {  // rounded as the model's dtype has it
      Bf16 narrow;
      s_.typed().convert(&scale, 1, &narrow);
      s_.typed().widen(&narrow, 1, &scale);
    }
    for (int64_t k = 0; k < hidden; ++k) {
      if constexpr (std::is_same_v<T, float>) {
        to[k] = panel[k * kPanelColumns + column] * scale;
      } else {
        const uint32_t bits = uint32_t{panel[(k / 2 * kPanelColumns + column) * 2 + k % 2].bits} << 16;
        std::memcpy(to + k, &bits, sizeof(float));
        to[k] *= scale;
      }
    }
  }

  ForwardState<T> s_;
  int num_stages_ = kStagesAround;
  Buffer<float> logits_;
  int64_t logits_stride_ = 0, logits_size_ = 0;
  std::vector<int32_t> logit_rows_, logit_index_of_row_;
  const std::vector<Draw>* draws_ = nullptr;
  std::vector<SampledToken>* tokens_ = nullptr;
};

}  // namespace

int64_t cache_block_bytes(const ModelConfig& config, at::ScalarType dtype, int64_t block_tokens) {
  std::vector<LayerCache> caches;
  return lay_out_caches(config, 1, block_tokens, 0, caches).first * static_cast<int64_t>(c10::elementSize(dtype));
}

int64_t recurrent_state_bytes(const ModelConfig& config) {
  std::vector<LayerCache> caches;
  return lay_out_caches(config, 0, 1, 1, caches).second * static_cast<int64_t>(sizeof(float));
}

std::unique_ptr<ForwardPass> make_forward_pass(const ModelConfig& config, at::ScalarType dtype,
                                               const ForwardOptions& options) {
  if (dtype == at::kFloat) return std::make_unique<CpuForwardPass<float>>(config, options);
  return std::make_unique<CpuForwardPass<Bf16>>(config, options);
}

}  // namespace troupe
