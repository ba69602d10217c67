// The CPU versions of ops.h. Callers use ops.h, whose definitions (ops_dispatch*.cpp) check the arguments and choose by
// device; what is declared here may rely on the checks that ops_dispatch.h lists and repeats none of them.
#pragma once

#include "models/kernels/ops.h"

namespace troupe::ops::cpu {

Tensor rms_norm(const Tensor& x_TD, const Tensor& weight_D, double eps);

void write_kv_with_rope_(Tensor& q_SHd, Tensor& k_SKd, const Tensor& v_SKd, const Tensor& positions_S,
                         const Tensor& slots_S, const Tensor& inverse_frequencies, Tensor& k_cache_NKBd,
                         Tensor& v_cache_NKBd);

Tensor paged_decode_attention(const Tensor& q_SHd, const Tensor& k_cache_NKBd, const Tensor& v_cache_NKBd,
                              const Tensor& block_tables_SM, const Tensor& lengths_S, double scale);

void fused_adamw_(Tensor& parameter, const Tensor& gradient, Tensor& exp_avg, Tensor& exp_avg_sq,
                  const AdamWArguments& arguments);

std::pair<Tensor, Tensor> sample(const Tensor& logits_SV, int64_t vocab_size, const Tensor& temperature_S,
                                 const Tensor& top_p_S, const Tensor& top_k_S, const Tensor& min_p_S,
                                 const Tensor& sample_ids_S, const Tensor& token_indices_S,
                                 const SampleArguments& arguments);

}  // namespace troupe::ops::cpu
