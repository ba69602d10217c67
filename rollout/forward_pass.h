// The decoder's forward pass over the rows of one engine step, on the CPU, without torch: decode rows and rows of
// prompt chunks alike. A row is one token of one sequence; it writes its keys and values to its slot and attends to
// everything before it in its sequence. Every row's result depends on that sequence alone, bit for bit
// (models/kernels).
//
// The residual is kept in fp32; what enters a matrix product, and the cache, is of the model's dtype.
#pragma once

#include <memory>
#include <vector>

#include "models/config.h"
#include "models/kernels/decode_sampling.h"
#include "rollout/packed_model.h"

namespace troupe {

struct Row {
  int32_t token = 0;
  int32_t position = 0;
  int64_t slot = -1;                // block * block_tokens + offset to write to; -1: the cache holds this token already
  const int32_t* blocks = nullptr;  // of the sequence, covering [0, position]
  int32_t state = -1;  // the sequence's slot of recurrent state; its rows of a step stand together, in order
};

/// Draws one token from a row's logits.
struct Draw {
  int32_t row = 0;
  SamplingRule rule;
  double uniform = 0;
};

struct ForwardOptions {
  int64_t num_blocks = 0;
  int64_t block_tokens = 16;
  int64_t max_context_length = 0;
  int64_t num_states = 0;  // slots of recurrent state; 0 where no layer has any
  int64_t max_rows = 0;    // of one call
  int64_t vocab_size = 0;
  int num_threads = 1;
};

class ForwardPass {
 public:
  virtual ~ForwardPass() = default;
  /// Runs the rows through the model and draws; `tokens` gets one entry for each draw. Each row with a draw may be
  /// drawn from several times. Throws Error where a drawn row's logits are not finite.
  virtual void run(const PackedModel& model, const std::vector<Row>& rows, const std::vector<Draw>& draws,
                   std::vector<SampledToken>& tokens) = 0;
  /// Copies the first `num_tokens` tokens of a block to another, in every layer.
  virtual void copy_block(int32_t from, int32_t to, int64_t num_tokens) = 0;
  /// Copies a slot of recurrent state to another. A slot begins anew with a row at position 0.
  virtual void copy_state(int32_t from, int32_t to) = 0;
};

/// `dtype` of the packed models that it will run. Reserves the cache's address space; memory comes with use.
std::unique_ptr<ForwardPass> make_forward_pass(const ModelConfig& config, at::ScalarType dtype,
                                               const ForwardOptions& options);

/// Bytes that one block of the cache takes over all layers.
int64_t cache_block_bytes(const ModelConfig& config, at::ScalarType dtype, int64_t block_tokens);
/// Bytes of one slot of recurrent state over all layers; 0 where no layer has any.
int64_t recurrent_state_bytes(const ModelConfig& config);

}  // namespace troupe
