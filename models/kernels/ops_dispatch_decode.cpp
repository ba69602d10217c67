// Argument checks and choice of device for the ops of decoding: write_kv_with_rope_, paged_decode_attention, sample.
// No arithmetic here.
#include "base/error.h"
#include "models/kernels/ops_cpu.h"
#include "models/kernels/ops_dispatch.h"

namespace troupe::ops {
namespace {

void check_caches(const Tensor& k_cache, const Tensor& v_cache, const Tensor& q, const char* op) {
  check_tensor(k_cache, q, op, "k_cache");
  check_tensor(v_cache, q, op, "v_cache");
  require(k_cache.dim() == 4, "ops::", op, ": k_cache must be [N, K, B, d], has shape ", k_cache.sizes());
  check_dtype(k_cache, q.scalar_type(), op, "k_cache");
  check_dtype(v_cache, q.scalar_type(), op, "v_cache");
  check_shape(v_cache, k_cache.sizes(), op, "v_cache");
  check_contiguous(k_cache, op, "k_cache");
  check_contiguous(v_cache, op, "v_cache");
}

void check_query(const Tensor& q, const Tensor& k_cache, const char* op) {
  require(q.dim() == 3, "ops::", op, ": q must be [S, H, d], has shape ", q.sizes());
  check_dense_rows(q, op, "q");
  require(q.size(2) == k_cache.size(3), "ops::", op, ": q has head size ", q.size(2), ", the caches ", k_cache.size(3));
  require(k_cache.size(1) > 0 && q.size(1) % k_cache.size(1) == 0, "ops::", op, ": ", q.size(1),
          " query heads do not divide among ", k_cache.size(1), " key/value heads");
}

void check_per_row(const Tensor& tensor, const Tensor& rows, at::ScalarType dtype, const char* op, const char* name) {
  check_tensor(tensor, rows, op, name);
  check_dtype(tensor, dtype, op, name);
  check_shape(tensor, {rows.size(0)}, op, name);
  check_contiguous(tensor, op, name);
}

}  // namespace

void write_kv_with_rope_(Tensor& q_SHd, Tensor& k_SKd, const Tensor& v_SKd, const Tensor& positions_S,
                         const Tensor& slots_S, const Tensor& inverse_frequencies, Tensor& k_cache_NKBd,
                         Tensor& v_cache_NKBd) {
  const char* op = "write_kv_with_rope_";
  check_tensor(q_SHd, q_SHd, op, "q");
  check_float(q_SHd, op, "q");
  check_caches(k_cache_NKBd, v_cache_NKBd, q_SHd, op);
  check_query(q_SHd, k_cache_NKBd, op);
  const int64_t head_size = q_SHd.size(2);
  require(head_size % 2 == 0, "ops::", op, ": rotation needs an even head size, is ", head_size);
  for (const auto& [tensor, name] : {std::pair<const Tensor&, const char*>{k_SKd, "k"}, {v_SKd, "v"}}) {
    check_tensor(tensor, q_SHd, op, name);
    check_dtype(tensor, q_SHd.scalar_type(), op, name);
    check_shape(tensor, {q_SHd.size(0), k_cache_NKBd.size(1), head_size}, op, name);
    check_dense_rows(tensor, op, name);
  }
  check_per_row(positions_S, q_SHd, at::kInt, op, "positions");
  check_per_row(slots_S, q_SHd, at::kLong, op, "slots");
  check_tensor(inverse_frequencies, q_SHd, op, "inverse_frequencies");
  check_dtype(inverse_frequencies, at::kFloat, op, "inverse_frequencies");
  check_shape(inverse_frequencies, {head_size / 2}, op, "inverse_frequencies");
  check_contiguous(inverse_frequencies, op, "inverse_frequencies");
  if (q_SHd.size(0) == 0) return;
  const auto function =
      dispatches_to_cuda(q_SHd, op) ? cuda_ops().write_kv_with_rope_function : &cpu::write_kv_with_rope_;
  function(q_SHd, k_SKd, v_SKd, positions_S, slots_S, inverse_frequencies, k_cache_NKBd, v_cache_NKBd);
}

Tensor paged_decode_attention(const Tensor& q_SHd, const Tensor& k_cache_NKBd, const Tensor& v_cache_NKBd,
                              const Tensor& block_tables_SM, const Tensor& lengths_S, double scale) {
  const char* op = "paged_decode_attention";
  check_tensor(q_SHd, q_SHd, op, "q");
  check_float(q_SHd, op, "q");
  check_caches(k_cache_NKBd, v_cache_NKBd, q_SHd, op);
  check_query(q_SHd, k_cache_NKBd, op);
  check_tensor(block_tables_SM, q_SHd, op, "block_tables");
  check_dtype(block_tables_SM, at::kInt, op, "block_tables");
  require(block_tables_SM.dim() == 2 && block_tables_SM.size(0) == q_SHd.size(0), "ops::", op,
          ": block_tables must be [S, M] with S = ", q_SHd.size(0), ", has shape ", block_tables_SM.sizes());
  check_contiguous(block_tables_SM, op, "block_tables");
  check_per_row(lengths_S, q_SHd, at::kInt, op, "lengths");
  const auto function =
      dispatches_to_cuda(q_SHd, op) ? cuda_ops().paged_decode_attention_function : &cpu::paged_decode_attention;
  return function(q_SHd, k_cache_NKBd, v_cache_NKBd, block_tables_SM, lengths_S, scale);
}

std::pair<Tensor, Tensor> sample(const Tensor& logits_SV, int64_t vocab_size, const Tensor& temperature_S,
                                 const Tensor& top_p_S, const Tensor& top_k_S, const Tensor& min_p_S,
                                 const Tensor& sample_ids_S, const Tensor& token_indices_S,
                                 const SampleArguments& arguments) {
  const char* op = "sample";
  check_tensor(logits_SV, logits_SV, op, "logits");
  check_float(logits_SV, op, "logits");
  require(logits_SV.dim() == 2, "ops::sample: logits must be [S, V], has shape ", logits_SV.sizes());
  check_contiguous(logits_SV, op, "logits");
  require(vocab_size >= 1 && vocab_size <= logits_SV.size(1), "ops::sample: vocab_size ", vocab_size,
          " is not within the ", logits_SV.size(1), " columns of the logits");
  check_per_row(temperature_S, logits_SV, at::kFloat, op, "temperature");
  check_per_row(top_p_S, logits_SV, at::kFloat, op, "top_p");
  check_per_row(top_k_S, logits_SV, at::kInt, op, "top_k");
  check_per_row(min_p_S, logits_SV, at::kFloat, op, "min_p");
  check_per_row(sample_ids_S, logits_SV, at::kLong, op, "sample_ids");
  check_per_row(token_indices_S, logits_SV, at::kInt, op, "token_indices");
  const auto function = dispatches_to_cuda(logits_SV, op) ? cuda_ops().sample_function : &cpu::sample;
  return function(logits_SV, vocab_size, temperature_S, top_p_S, top_k_S, min_p_S, sample_ids_S, token_indices_S,
                  arguments);
}

}  // namespace troupe::ops
