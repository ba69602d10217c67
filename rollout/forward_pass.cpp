#include "rollout/forward_pass.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "base/error.h"
#include "rollout/packed_decoder.h"
#include "rollout/thread_team.h"

namespace troupe {
namespace {

constexpr int64_t kRowChunk = 64;   // rows whose partial results stay in the first-level cache between product and use
constexpr int64_t kStridePad = 32;  // keeps rows off each other's cache sets where K is a power of two
constexpr int kStagesPerLayer = 8, kStagesAround = 4;

int64_t round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

/// Memory aligned to a cache line.
template <class T>
class Buffer {
 public:
  void resize(int64_t size) {
    storage_.resize(size + 64 / sizeof(T));
    const auto address = reinterpret_cast<uintptr_t>(storage_.data());
    data_ = storage_.data() + (64 - address % 64) % 64 / sizeof(T);
  }
  T* data() { return data_; }

 private:
  std::vector<T> storage_;
  T* data_ = nullptr;
};

template <class T>
class CpuForwardPass final : public ForwardPass {
 public:
  CpuForwardPass(const ModelConfig& config, const ForwardOptions& options)
      : config_(config),
        options_(options),
        team_(options.num_threads),
        head_size_(config.head_dim),
        num_heads_(config.num_attention_heads),
        num_kv_heads_(config.num_key_value_heads),
        group_(num_heads_ / num_kv_heads_),
        hidden_(config.hidden_size),
        query_size_(num_heads_ * head_size_),
        kv_size_(num_kv_heads_ * head_size_),
        block_elements_(num_kv_heads_ * options.block_tokens * head_size_),
        layer_elements_(options.num_blocks * block_elements_),
        cache_(2 * static_cast<size_t>(config.num_hidden_layers * layer_elements_) * sizeof(T)),
        per_thread_(options.num_threads) {
    const int64_t rows = options.max_rows;
    residual_.resize(rows * hidden_);
    input_stride_ = round_up(std::max(hidden_, query_size_), 2) + kStridePad;
    input_.resize(rows * input_stride_);
    qkv_stride_ = round_up(query_size_ + 2 * kv_size_, kPanelColumns);
    qkv_.resize(rows * qkv_stride_);
    activation_stride_ = round_up(config.intermediate_size, kPanelColumns) + kStridePad;
    activation_.resize(rows * activation_stride_);
    logits_stride_ = round_up(config.vocab_size, kPanelColumns);
    scores_stride_ = round_up(options.max_context_length, 16);
    for (auto& scratch : per_thread_) {
      scratch.product.resize(2 * kRowChunk * kPanelColumns);
      scratch.scores.resize(4 * scores_stride_);
    }
  }

  void run(const PackedModel& model, const std::vector<Row>& rows, const std::vector<Draw>& draws,
           std::vector<SampledToken>& tokens) override {
    const auto* packed = dynamic_cast<const PackedDecoder<T>*>(&model);
    require(packed != nullptr, "the engine was made for weights of another dtype");
    require(static_cast<int64_t>(rows.size()) <= options_.max_rows, "a step of ", rows.size(), " rows is too large");
    model_ = packed;
    rows_ = &rows;
    draws_ = &draws;
    tokens_ = &tokens;
    tokens.assign(draws.size(), {});
    list_drawn_rows();
    fill_rotations();
    const int num_stages = static_cast<int>(kStagesPerLayer * config_.num_hidden_layers + kStagesAround);
    team_.run(num_stages, [this](int thread) { work(thread); });
    for (size_t i = 0; i < draws.size(); ++i) {
      require(tokens[i].id >= 0, "the logits at position ", rows[draws[i].row].position,
              " are not finite (weights of version ", model.version(), ")");
    }
  }

  void copy_block(int32_t from, int32_t to, int64_t num_tokens) override {
    for (int64_t layer = 0; layer < config_.num_hidden_layers; ++layer) {
      for (T* base : {keys(layer), values(layer)}) {
        for (int64_t head = 0; head < num_kv_heads_; ++head) {
          const int64_t offset = head * options_.block_tokens * head_size_;
          std::memcpy(base + to * block_elements_ + offset, base + from * block_elements_ + offset,
                      num_tokens * head_size_ * sizeof(T));
        }
      }
    }
  }

 private:
  struct PerThread {
    Buffer<float> product, scores;
    SamplingScratch sampling;
  };

  T* keys(int64_t layer) { return reinterpret_cast<T*>(cache_.data()) + 2 * layer * layer_elements_; }
  T* values(int64_t layer) { return keys(layer) + layer_elements_; }
  const TypedDecodeKernels<T>& typed() const { return typed_kernels<T>(kernels_); }
  int64_t num_rows() const { return static_cast<int64_t>(rows_->size()); }

  void list_drawn_rows() {
    logit_rows_.clear();
    logit_index_of_row_.assign(rows_->size(), -1);
    for (const auto& draw : *draws_) {
      int32_t& index = logit_index_of_row_[draw.row];
      if (index >= 0) continue;
      index = static_cast<int32_t>(logit_rows_.size());
      logit_rows_.push_back(draw.row);
    }
    const int64_t needed = static_cast<int64_t>(logit_rows_.size()) * logits_stride_;
    if (needed > logits_size_) logits_.resize(logits_size_ = needed);
  }

  /// Cosines and sines of all positions so far asked for; angles are position * frequency in fp32 as in the trainer.
  void fill_rotations() {
    const int64_t half = head_size_ / 2;
    const auto scale = static_cast<float>(config_.rope.attention_factor);
    for (const auto& row : *rows_) {
      while (num_rotations_ <= row.position) {
        for (int64_t i = 0; i < half; ++i) {
          const float angle = static_cast<float>(num_rotations_) * model_->inverse_frequencies[i];
          cosines_.push_back(std::cos(angle) * scale);
          sines_.push_back(std::sin(angle) * scale);
        }
        ++num_rotations_;
      }
    }
  }

  // ---- one thread's way through the step ----

  void work(int thread) {
    int stage = 0;
    team_.share(thread, stage++, num_rows(), 8, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) embed((*rows_)[r].token, residual_.data() + r * hidden_);
    });
    for (int64_t index = 0; index < config_.num_hidden_layers; ++index) {
      const auto& layer = model_->layers[index];
      normalise(thread, stage++, layer.input_norm);
      multiply(thread, stage++, layer.query_key_value);
      team_.share(thread, stage++, num_rows(), 4, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) place_row(index, layer, r);
      });
      team_.share(thread, stage++, num_rows() * num_kv_heads_, 2, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) attend(thread, index, i / num_kv_heads_, i % num_kv_heads_);
      });
      add_product(thread, stage++, layer.output, input_.data(), input_stride_, layer.output_bias);
      normalise(thread, stage++, layer.post_attention_norm);
      gate(thread, stage++, layer);
      add_product(thread, stage++, layer.down, activation_.data(), activation_stride_, layer.down_bias);
    }
    const int64_t num_logit_rows = static_cast<int64_t>(logit_rows_.size());
    team_.share(thread, stage++, num_logit_rows, 8, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        typed().rms_norm(residual_.data() + logit_rows_[i] * hidden_, model_->final_norm.data(), hidden_, epsilon(),
                         input_.data() + i * input_stride_);
      }
    });
    team_.share(thread, stage++, model_->head.num_panels, 4, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        typed().gemm_panel(input_.data(), input_stride_, num_logit_rows, model_->head.panel(p), model_->head.depth,
                           logits_.data() + p * kPanelColumns, logits_stride_);
      }
    });
    team_.share(thread, stage++, static_cast<int64_t>(draws_->size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const Draw& draw = (*draws_)[i];
        const float* logits = logits_.data() + logit_index_of_row_[draw.row] * logits_stride_;
        (*tokens_)[i] =
            sample_token(kernels_, logits, options_.vocab_size, draw.rule, draw.uniform, per_thread_[thread].sampling);
      }
    });
  }

  float epsilon() const { return static_cast<float>(config_.rms_norm_eps); }

  /// A token's embedding, gathered from its panel's column.
  void embed(int32_t token, float* to) const {
    const auto& matrix = model_->embedding;
    const T* panel = matrix.panel(token / kPanelColumns);
    const int64_t column = token % kPanelColumns;
    for (int64_t k = 0; k < hidden_; ++k) {
      if constexpr (std::is_same_v<T, float>) {
        to[k] = panel[k * kPanelColumns + column];
      } else {
        const uint32_t bits = uint32_t{panel[(k / 2 * kPanelColumns + column) * 2 + k % 2].bits} << 16;
        std::memcpy(to + k, &bits, sizeof(float));
      }
    }
  }

  void normalise(int thread, int stage, const std::vector<float>& weight) {
    team_.share(thread, stage, num_rows(), 8, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        typed().rms_norm(residual_.data() + r * hidden_, weight.data(), hidden_, epsilon(),
                         input_.data() + r * input_stride_);
      }
    });
  }

  void multiply(int thread, int stage, const PackedMatrix<T>& matrix) {
    team_.share(thread, stage, matrix.num_panels, 1, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        typed().gemm_panel(input_.data(), input_stride_, num_rows(), matrix.panel(p), matrix.depth,
                           qkv_.data() + p * kPanelColumns, qkv_stride_);
      }
    });
  }

  /// Bias, norm of the heads, rotation, and the write to the cache.
  void place_row(int64_t layer_index, const PackedLayer<T>& layer, int64_t r) {
    const Row& row = (*rows_)[r];
    float* query = qkv_.data() + r * qkv_stride_;
    float* key = query + query_size_;
    const float* value = key + kv_size_;
    if (!layer.query_key_value_bias.empty()) {
      kernels_.add(layer.query_key_value_bias.data(), query_size_ + 2 * kv_size_, query);
    }
    const float* cosines = cosines_.data() + row.position * (head_size_ / 2);
    const float* sines = sines_.data() + row.position * (head_size_ / 2);
    for (int64_t h = 0; h < num_heads_ + num_kv_heads_; ++h) {
      float* head = query + h * head_size_;  // keys follow the queries
      const auto& norm = h < num_heads_ ? layer.query_norm : layer.key_norm;
      if (!norm.empty()) kernels_.f32.rms_norm(head, norm.data(), head_size_, epsilon(), head);
      kernels_.rotate(head, cosines, sines, head_size_ / 2);
    }
    if (row.slot < 0) return;
    const int64_t block = row.slot / options_.block_tokens, offset = row.slot % options_.block_tokens;
    for (int64_t h = 0; h < num_kv_heads_; ++h) {
      const int64_t at = block * block_elements_ + (h * options_.block_tokens + offset) * head_size_;
      typed().convert(key + h * head_size_, head_size_, keys(layer_index) + at);
      typed().convert(value + h * head_size_, head_size_, values(layer_index) + at);
    }
  }

  void attend(int thread, int64_t layer_index, int64_t r, int64_t kv_head) {
    const Row& row = (*rows_)[r];
    AttentionTask<T> task;
    task.query = qkv_.data() + r * qkv_stride_ + kv_head * group_ * head_size_;
    task.keys = keys(layer_index) + kv_head * options_.block_tokens * head_size_;
    task.values = values(layer_index) + kv_head * options_.block_tokens * head_size_;
    const int64_t window = config_.attention_window(layer_index);
    const int64_t first = window > 0 ? std::max<int64_t>(row.position + 1 - window, 0) : 0;
    const int64_t first_block = first / options_.block_tokens;
    task.blocks = row.blocks + first_block;
    task.block_stride = block_elements_;
    task.block_tokens = options_.block_tokens;
    task.first = first - first_block * options_.block_tokens;
    task.length = row.position + 1 - first_block * options_.block_tokens;
    task.num_heads = group_;
    task.head_size = head_size_;
    task.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_size_)));
    task.scores = per_thread_[thread].scores.data();
    task.scores_stride = scores_stride_;
    task.out = input_.data() + r * input_stride_ + kv_head * group_ * head_size_;
    typed().attend(task);
  }

  /// residual += input * matrix^T + bias.
  void add_product(int thread, int stage, const PackedMatrix<T>& matrix, const T* input, int64_t stride,
                   const std::vector<float>& bias) {
    float* product = per_thread_[thread].product.data();
    team_.share(thread, stage, matrix.num_panels, 1, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        const int64_t column = p * kPanelColumns, columns = std::min(kPanelColumns, hidden_ - column);
        for (int64_t first = 0; first < num_rows(); first += kRowChunk) {
          const int64_t rows = std::min(kRowChunk, num_rows() - first);
          typed().gemm_panel(input + first * stride, stride, rows, matrix.panel(p), matrix.depth, product,
                             kPanelColumns);
          for (int64_t r = 0; r < rows; ++r) {
            float* partial = product + r * kPanelColumns;
            if (!bias.empty()) kernels_.add(bias.data() + column, columns, partial);
            kernels_.add(partial, columns, residual_.data() + (first + r) * hidden_ + column);
          }
        }
      }
    });
  }

  /// activation = silu(gate) * up; a piece of work is a panel of both.
  void gate(int thread, int stage, const PackedLayer<T>& layer) {
    const auto& matrix = layer.gate_up;
    float* product = per_thread_[thread].product.data();
    team_.share(thread, stage, matrix.num_panels / 2, 1, [&](int64_t begin, int64_t end) {
      for (int64_t pair = begin; pair < end; ++pair) {
        const int64_t column = pair * kPanelColumns;
        const int64_t columns = std::min(kPanelColumns, config_.intermediate_size - column);
        for (int64_t first = 0; first < num_rows(); first += kRowChunk) {
          const int64_t rows = std::min(kRowChunk, num_rows() - first);
          float* up = product + kRowChunk * kPanelColumns;
          const T* input = input_.data() + first * input_stride_;
          typed().gemm_panel(input, input_stride_, rows, matrix.panel(2 * pair), matrix.depth, product, kPanelColumns);
          typed().gemm_panel(input, input_stride_, rows, matrix.panel(2 * pair + 1), matrix.depth, up, kPanelColumns);
          for (int64_t r = 0; r < rows; ++r) {
            float* gate_row = product + r * kPanelColumns;
            float* up_row = up + r * kPanelColumns;
            if (!layer.gate_bias.empty()) {
              kernels_.add(layer.gate_bias.data() + column, columns, gate_row);
              kernels_.add(layer.up_bias.data() + column, columns, up_row);
            }
            typed().swiglu(gate_row, up_row, columns, activation_.data() + (first + r) * activation_stride_ + column);
          }
        }
      }
    });
  }

  const ModelConfig config_;
  const ForwardOptions options_;
  const DecodeKernels& kernels_ = decode_kernels();
  ThreadTeam team_;
  const int64_t head_size_, num_heads_, num_kv_heads_, group_, hidden_, query_size_, kv_size_;
  const int64_t block_elements_, layer_elements_;
  PageMemory cache_;  // [layer][keys, values][block][key/value head][token][head size]
  std::vector<PerThread> per_thread_;
  Buffer<float> residual_, qkv_, logits_;
  Buffer<T> input_, activation_;
  int64_t input_stride_ = 0, qkv_stride_ = 0, activation_stride_ = 0, logits_stride_ = 0, scores_stride_ = 0;
  int64_t logits_size_ = 0;
  std::vector<float> cosines_, sines_;
  int64_t num_rotations_ = 0;
  std::vector<int32_t> logit_rows_, logit_index_of_row_;
  // of the step under way
  const PackedDecoder<T>* model_ = nullptr;
  const std::vector<Row>* rows_ = nullptr;
  const std::vector<Draw>* draws_ = nullptr;
  std::vector<SampledToken>* tokens_ = nullptr;
};

}  // namespace

int64_t cache_block_bytes(const ModelConfig& config, at::ScalarType dtype, int64_t block_tokens) {
  return 2 * config.num_hidden_layers * config.num_key_value_heads * block_tokens * config.head_dim *
         static_cast<int64_t>(c10::elementSize(dtype));
}

std::unique_ptr<ForwardPass> make_forward_pass(const ModelConfig& config, at::ScalarType dtype,
                                               const ForwardOptions& options) {
  if (dtype == at::kFloat) return std::make_unique<CpuForwardPass<float>>(config, options);
  return std::make_unique<CpuForwardPass<Bf16>>(config, options);
}

}  // namespace troupe
