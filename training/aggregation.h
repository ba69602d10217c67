// How token losses become one number. Every mode is a weight per token, so that a loss is always sum(weight * token
// loss): it splits over micro-batches and ranks without changing, because the counts in the weights are those of the
// whole batch.
#pragma once

#include <cstdint>
#include <string>

namespace troupe {

enum class Aggregation {
  kTokenMean,     // sum over tokens / number of tokens
  kSequenceMean,  // mean over sequences (with a trainable token) of their token means
  kConstant,      // sum over tokens / (number of sequences * constant length); Liu et al. 2025, "Understanding R1-Zero"
};
Aggregation parse_aggregation(const std::string& name);  // UsageError lists the known names

/// Counts over all ranks and micro-batches of one optimizer step, after masking (B001, B002, B005).
struct LossCounts {
  int64_t num_tokens = 0;              // trainable
  int64_t num_sequences = 0;           // with at least one trainable token
  int64_t num_sequences_in_batch = 0;  // all that take part, with or without a trainable token
};

/// Weight of each trainable token of a sequence that has `sequence_tokens` of them. 0 where there is nothing to divide
/// by, so that a batch without a trainable token has loss 0 and gradient 0.
double token_weight(Aggregation mode, const LossCounts& counts, int64_t sequence_tokens, double constant_length);

}  // namespace troupe
