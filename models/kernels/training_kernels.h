// The table of CPU kernels for training, one per instruction set, over plain pointers. The callers (autograd blocks,
// ops, log-probs) cut the work into ranges and run them in parallel; a kernel is serial.
//
// Free of torch: the files that fill the tables are compiled for instruction sets that this processor may lack.
#pragma once

#include <cstdint>

namespace troupe::kernels {

/// A packed row's segment in the form that the attention kernels read.
struct AttentionSegment {
  int32_t begin = 0, length = 0;
  int32_t parent_begin = 0, parent_length = 0;  // 0 tokens where there is no parent
};

/// Operands of attention; `qkv`, `output`, ... are float or bf16 (the kernel's element type), row-major.
struct AttentionArguments {
  const void* qkv = nullptr;       // [T, (H + 2 K) d]
  void* output = nullptr;          // [T, H d]; read by backward
  float* log_sum_exp = nullptr;    // [H, T]
  const void* d_output = nullptr;  // [T, H d]
  void* d_qkv = nullptr;           // [T, (H + 2 K) d]
  int64_t num_tokens = 0, num_heads = 0, num_key_value_heads = 0, head_dim = 0;
  float scale = 1;
  int64_t window = INT64_MAX;  // tokens that a query sees, itself included
  int64_t chunk = INT64_MAX;   // positions of a chunk outside of which a query sees nothing
};

struct AdamWConstants {
  float decay = 1;  // 1 - lr * weight_decay
  float beta1 = 0, beta2 = 0;
  float step_size = 0;     // lr / (1 - beta1^step)
  float second_scale = 1;  // 1 / sqrt(1 - beta2^step)
  float eps = 0, gradient_scale = 1;
};

/// What one row of scores = logits / temperature says of its target.
struct ScoreValues {
  float log_prob = 0, entropy = 0, log_sum_exp = 0;
};

/// Kernels for one element type (float or bf16 bits). `rows` are contiguous unless a stride is given.
struct ElementKernels {
  /// sum = x + residual (both may be null: then x is normalised as it is); y = sum * inverse_rms * (weight + offset).
  void (*rms_norm)(const void* x, const void* residual, const void* weight, float offset, int64_t rows, int64_t width,
                   float eps, void* sum, void* y, float* inverse_rms);
  /// d_x = gradient of x (+ d_residual unless null); adds to d_weight [width] fp32.
  void (*rms_norm_backward)(const void* d_y, const void* x, const void* weight, float offset, const float* inverse_rms,
                            const void* d_residual, int64_t rows, int64_t width, void* d_x, float* d_weight);
  /// gate_up [rows, 2 size] -> silu(gate) * up [rows, size].
  void (*swiglu)(const void* gate_up, int64_t rows, int64_t size, void* product);
  void (*swiglu_backward)(const void* gate_up, const void* d_product, int64_t rows, int64_t size, void* product,
                          void* d_gate_up);
  /// Rotates the first `rotated` dimensions of the first `num_heads` heads of each row in place; table [rows, rotated]
  /// cosines then sines; pairs are (i, i + rotated / 2) or, interleaved, (2 i, 2 i + 1); sign -1: back.
  void (*rope)(void* buffer, int64_t rows, int64_t row_stride, int64_t num_heads, int64_t head_dim, int64_t rotated,
               bool interleaved, const float* table, float sign);
  /// Logits [size] of one row.
  ScoreValues (*score_values)(const void* logits, int64_t size, float inverse_temperature, int64_t target);
  /// d loss / d logits into `out` (may be `logits`) from d loss / d log_prob and d loss / d entropy.
  void (*score_gradient)(const void* logits, int64_t size, float inverse_temperature, int64_t target,
                         const ScoreValues& values, float d_log_prob, float d_entropy, void* out);
  void (*adamw)(float* parameter, const void* gradient, float* exp_avg, float* exp_avg_sq, int64_t size,
                const AdamWConstants& constants);
  /// One segment, one key/value head and its query heads.
  void (*attention_forward)(const AttentionArguments& arguments, const AttentionSegment& segment, int64_t kv_head);
  /// A root segment and its children (num_segments in all, root first), one key/value head.
  void (*attention_backward)(const AttentionArguments& arguments, const AttentionSegment* segments,
                             int64_t num_segments, int64_t kv_head);
};

inline constexpr int64_t kPanelWidth = 64;

/// The output head of a bf16 model in panels of 64 tokens (models/kernels/head_panels.h). The hidden size must be even.
struct HeadKernels {
  void (*pack)(const void* hidden, int64_t count, int64_t size, void* out) = nullptr;
  void (*multiply)(const void* weight, int64_t begin, int64_t end, int64_t size, const void* packed, int64_t num_panels,
                   int64_t panel_stride, float* panels) = nullptr;
  void (*values)(const float* panel, int64_t size, float inverse_temperature, const int64_t* targets, int64_t count,
                 ScoreValues* out) = nullptr;
  void (*gradient)(const float* panel, int64_t begin, int64_t end, float inverse_temperature, const int64_t* targets,
                   int64_t count, const ScoreValues* values, const float* d_log_prob, const float* d_entropy, void* out,
                   int64_t out_stride) = nullptr;
};

struct TrainingKernels {
  const char* name = "";
  ElementKernels float32, bfloat16;
  /// fp32 logits -> bf16 gradient (the head of a bf16 model keeps its logits in fp32).
  void (*score_gradient_to_bfloat16)(const void* logits, int64_t size, float inverse_temperature, int64_t target,
                                     const ScoreValues& values, float d_log_prob, float d_entropy, void* out);
  /// Null members where the instruction set has no bf16 products.
  HeadKernels head;
};

extern const TrainingKernels kTrainingGeneric, kTrainingAvx2, kTrainingAvx512, kTrainingAvx512Bf16;

/// The best table for this processor (base/cpu.h), chosen once.
const TrainingKernels& training_kernels();

}  // namespace troupe::kernels
