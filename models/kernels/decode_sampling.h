// One token from one row of logits: the arithmetic of ops::sample (whose comment in ops.h is the definition) for one
// row, shared by that op and by the generation engine.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "models/kernels/decode_kernels.h"

namespace troupe {

struct SamplingRule {
  float temperature = 1;  // 0 = greedy
  float top_p = 1;        // 1 = off
  int32_t top_k = 0;      // 0 = off
  float min_p = 0;        // 0 = off
};

/// Memory that is kept between rows; one for each thread.
struct SamplingScratch {
  std::vector<float> block_sums;
  std::vector<float> exponentials;
  std::vector<std::pair<float, int32_t>> candidates;  // (logit, id)
};

struct SampledToken {
  int32_t id = -1;  // -1: the logits hold NaN or infinity
  float log_prob = 0;
};

/// `uniform` in [0, 1). Does not throw on bad numbers (see SampledToken::id): it runs inside parallel regions.
SampledToken sample_token(const DecodeKernels& kernels, const float* logits, int64_t vocab_size,
                          const SamplingRule& rule, double uniform, SamplingScratch& scratch);

}  // namespace troupe
