// One chunk of rows through the output head: log-probs and entropies of the targets, then the gradient of the logits.
// What training/log_probs.cpp iterates over; the chunk's logits live here and nowhere else.
//
// Shape legend: N rows of the chunk, D hidden size, V vocabulary in use.
#pragma once

#include "models/torch.h"
#include "parallel/collectives.h"

namespace troupe {

/// The head's rows spread over tensor ranks: this rank has those of tokens [begin, begin + rows).
struct VocabularySplit {
  Collectives* ranks = nullptr;  // null: one rank has all
  int64_t begin = 0;
};

class HeadChunk {
 public:
  virtual ~HeadChunk() = default;
  /// Computes the chunk's logits from hidden_ND and fills log_prob_N and entropy_N (contiguous, fp32; float64 for
  /// float64).
  virtual void forward(const Tensor& hidden_ND, const Tensor& targets_N, const Tensor& log_prob_N,
                       const Tensor& entropy_N) = 0;
  /// Gradient of the last forward's logits, transposed [V, N], in the weight's dtype. d_entropy may be undefined.
  virtual Tensor backward(const Tensor& d_log_prob_N, const Tensor& d_entropy_N) = 0;
};

/// What happens to a logit before the softmax: softcap * tanh(logit / softcap) where softcap > 0, then / temperature.
struct LogitRule {
  double temperature = 1, softcap = 0;
};

/// The fastest form for the weight [V, D]: panels with fp32 logits for bf16 (processors with bf16 products), rows in
/// fp32 otherwise on the CPU, plain tensor operations elsewhere. Chunks have at most `num_chunk_rows` rows. With a
/// split every rank gives the same hidden states and whole-vocabulary targets and gets the same values; four numbers a
/// row travel, never logits; the gradient is of this rank's logits alone.
std::unique_ptr<HeadChunk> make_head_chunk(const Tensor& weight_VD, const LogitRule& rule, int64_t num_chunk_rows,
                                           const VocabularySplit& split = {});

}  // namespace troupe
