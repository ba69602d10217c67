// Tensor operations that LibTorch lacks or does slowly, each with a CPU version (run-time dispatch over instruction
// sets) and, in a build with CUDA, a device twin chosen by the tensors' device. tests/models/ops_test.cpp holds one
// table that runs on whichever device is there.
//
// Shape legend: T tokens, S sequences of a decode batch, D hidden, H query heads, K key/value heads, d head size,
// N cache blocks, B tokens in a cache block, M blocks of the longest sequence, V vocabulary. dtype: float32 or
// bfloat16.
#pragma once

#include "models/torch.h"

namespace troupe::ops {

/// y = x / sqrt(mean(x^2) + eps) * weight, statistics in fp32 (Zhang and Sennrich 2019). x_TD, weight_D -> [T, D].
Tensor rms_norm(const Tensor& x_TD, const Tensor& weight_D, double eps);

/// Rotates q and k in place (first half / second half pairs, as Hugging Face does) at positions_S and writes k, v to
/// their slots: slot = block * B + offset, -1 skips the row's write. positions int32, slots int64. k_cache, v_cache:
/// [N, K, B, d] in q's dtype. inverse_frequencies: fp32 [d/2]. Angles are position * frequency, both fp32.
void write_kv_with_rope_(Tensor& q_SHd, Tensor& k_SKd, const Tensor& v_SKd, const Tensor& positions_S,
                         const Tensor& slots_S, const Tensor& inverse_frequencies, Tensor& k_cache_NKBd,
                         Tensor& v_cache_NKBd);

/// One query token a sequence over its paged cache, softmax in fp32 -> [S, H, d]. block_tables_SM int32 (unused = -1),
/// lengths_S int32 counts the tokens to attend, the current one included; length 0 gives zeros.
Tensor paged_decode_attention(const Tensor& q_SHd, const Tensor& k_cache_NKBd, const Tensor& v_cache_NKBd,
                              const Tensor& block_tables_SM, const Tensor& lengths_S, double scale);

struct AdamWArguments {
  double lr = 0, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0;
  double gradient_scale = 1;  // e.g. of global norm clipping, applied on reading
  int64_t step = 1;           // 1 for the first update (bias correction)
};
/// AdamW (Loshchilov and Hutter 2019) in one pass. All fp32 and of one shape; gradient may be bfloat16.
void fused_adamw_(Tensor& parameter, const Tensor& gradient, Tensor& exp_avg, Tensor& exp_avg_sq,
                  const AdamWArguments& arguments);

struct SampleArguments {
  uint64_t seed = 0;
};
/// Per row: temperature_S fp32 (0 = greedy), top_p_S fp32 (1 = off), top_k_S int32 (0 = off), min_p_S fp32 (0 = off);
/// sample_ids_S int64 (bits of the uint64), token_indices_S int32. Inverse cumulative sum over the vocabulary in id
/// order with one Philox uniform u (base/philox.h, stream 0): the first kept id whose running sum exceeds u * kept
/// mass. Filters, in this order: top-k; top-p over what top-k left (the fewest best ids whose share reaches top_p);
/// min-p (at least min_p times the best probability). Each is a threshold: ids that tie with the last one kept stay
/// too. Greedy takes the lowest of tied ids. Returns ids_S int64 and log_probs_S fp32 = log-softmax in fp32 of logits /
/// temperature over the first `vocab_size` columns, before the filters (greedy rows: temperature 1). A row
/// that is not finite is an Error on the CPU, the id -1 on CUDA.
std::pair<Tensor, Tensor> sample(const Tensor& logits_SV, int64_t vocab_size, const Tensor& temperature_S,
                                 const Tensor& top_p_S, const Tensor& top_k_S, const Tensor& min_p_S,
                                 const Tensor& sample_ids_S, const Tensor& token_indices_S,
                                 const SampleArguments& arguments);

}  // namespace troupe::ops
