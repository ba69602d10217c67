// Log-probabilities and entropies of target tokens through the output head, and their gradients, a chunk of rows at a
// time: a whole batch's logits never exist. The one definition (invariant 6): log-softmax in fp32 of logits /
// temperature over the first `vocab_size` columns.
//
// Shape legend: T tokens of a packed row, N tokens that have a target, D hidden size, V vocabulary (rows of the head).
#pragma once

#include "models/torch.h"
#include "training/head_chunk.h"

namespace troupe {

struct LogProbOptions {
  double temperature = 1;    // > 0
  double logit_softcap = 0;  // see ModelConfig
  int64_t vocab_size = 0;    // the tokenizer's real vocabulary, <= V; 0: V (not with a split)
  VocabularySplit split;     // the weight has this rank's rows of the head; all ranks of it call alike
  int64_t num_chunk_rows = 512;
  bool entropy_gradient = false;  // whether entropy_T is differentiable too
};

/// Both fp32 (float64 for float64 weights), 0 where the target is -1.
struct LogProbs {
  Tensor log_prob_T;
  Tensor entropy_T;  // of the distribution that the target was drawn from
};

/// hidden_TD and weight_VD of one dtype; targets_T int64: the token that follows position t, -1 for none. Rows without
/// target never reach the head. Differentiable in hidden and weight; backward computes each chunk's logits again.
/// With a split the gradients of hidden are this rank's part of a sum. Throws Error on a target outside of the
/// vocabulary and on a temperature that is not positive.
LogProbs log_probs(const Tensor& hidden_TD, const Tensor& weight_VD, const Tensor& targets_T,
                   const LogProbOptions& options);

/// The loss of one chunk from its log-probs and entropies [N'] (fp32; `rows` int64: their places in the packed row). A
/// sum over tokens: everything that joins tokens (denominators, advantages) is known before. Plain differentiable
/// operations.
using ChunkLoss = std::function<Tensor(const Tensor& log_prob, const Tensor& entropy, const Tensor& rows)>;

struct LogProbLoss {
  Tensor loss;      // scalar, fp32; its backward only scales what forward computed
  LogProbs values;  // not differentiable
};

/// The fast form, for losses that are sums over tokens: sum of `chunk_loss` over the chunks, with the gradients of
/// hidden and weight computed while a chunk's logits are there (three products with the head instead of four).
/// Differentiable once.
LogProbLoss log_prob_loss(const Tensor& hidden_TD, const Tensor& weight_VD, const Tensor& targets_T,
                          const LogProbOptions& options, const ChunkLoss& chunk_loss);

}  // namespace troupe
