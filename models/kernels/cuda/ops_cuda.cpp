// Between tensors and kernels: device guard, stream, outputs, element types. Arguments were checked by
// ops_dispatch*.cpp.
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "base/error.h"
#include "models/kernels/cuda/kernels.h"
#include "models/kernels/cuda/register.h"
#include "models/kernels/ops_dispatch.h"

namespace troupe::ops {
namespace {

cuda::Element element_of(const Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat ? cuda::Element::kFloat32 : cuda::Element::kBfloat16;
}

void check_launch(cudaError_t error, const char* op) {
  require(error == cudaSuccess, "ops::", op, ": CUDA refused the launch: ", cudaGetErrorString(error));
}

int as_int(int64_t value, const char* op, const char* name) {
  require(value <= std::numeric_limits<int32_t>::max(), "ops::", op, ": ", name, " = ", value, " is beyond 32 bits");
  return static_cast<int>(value);
}

Tensor rms_norm_cuda(const Tensor& x_TD, const Tensor& weight_D, double eps) {
  const c10::cuda::CUDAGuard guard(x_TD.device());
  Tensor y_TD = at::empty_like(x_TD);
  if (y_TD.numel() == 0) return y_TD;
  as_int(x_TD.size(0), "rms_norm", "T");
  check_launch(cuda::launch_rms_norm(element_of(x_TD), x_TD.const_data_ptr(), weight_D.const_data_ptr(),
                                     y_TD.mutable_data_ptr(), x_TD.size(0), as_int(x_TD.size(1), "rms_norm", "D"),
                                     static_cast<float>(eps), c10::cuda::getCurrentCUDAStream()),
               "rms_norm");
  return y_TD;
}

void write_kv_with_rope_cuda_(Tensor& q_SHd, Tensor& k_SKd, const Tensor& v_SKd, const Tensor& positions_S,
                              const Tensor& slots_S, const Tensor& inverse_frequencies, Tensor& k_cache_NKBd,
                              Tensor& v_cache_NKBd) {
  const char* op = "write_kv_with_rope_";
  const c10::cuda::CUDAGuard guard(q_SHd.device());
  require(q_SHd.size(2) <= 256, "ops::", op, ": head size ", q_SHd.size(2), " is beyond 256 on CUDA");
  const cuda::RopeShape shape{as_int(q_SHd.size(1), op, "H"),
                              as_int(k_SKd.size(1), op, "K"),
                              as_int(q_SHd.size(2), op, "d"),
                              as_int(k_cache_NKBd.size(2), op, "B"),
                              q_SHd.stride(0),
                              k_SKd.stride(0),
                              v_SKd.stride(0)};
  check_launch(cuda::launch_rope_cache(element_of(q_SHd), q_SHd.mutable_data_ptr(), k_SKd.mutable_data_ptr(),
                                       v_SKd.const_data_ptr(), positions_S.const_data_ptr<int32_t>(),
                                       slots_S.const_data_ptr<int64_t>(), inverse_frequencies.const_data_ptr<float>(),
                                       k_cache_NKBd.mutable_data_ptr(), v_cache_NKBd.mutable_data_ptr(), q_SHd.size(0),
                                       shape, c10::cuda::getCurrentCUDAStream()),
               op);
}

Tensor paged_decode_attention_cuda(const Tensor& q_SHd, const Tensor& k_cache_NKBd, const Tensor& v_cache_NKBd,
                                   const Tensor& block_tables_SM, const Tensor& lengths_S, double scale) {
  const char* op = "paged_decode_attention";
  const c10::cuda::CUDAGuard guard(q_SHd.device());
  Tensor out_SHd = at::empty(q_SHd.sizes(), q_SHd.options());
  if (out_SHd.numel() == 0) return out_SHd;
  require(q_SHd.size(2) <= 256, "ops::", op, ": head size ", q_SHd.size(2), " is beyond 256 on CUDA");
  cuda::AttentionShape shape{};
  shape.num_heads = as_int(q_SHd.size(1), op, "H");
  shape.num_kv_heads = as_int(k_cache_NKBd.size(1), op, "K");
  shape.head_size = as_int(q_SHd.size(2), op, "d");
  shape.block_size = as_int(k_cache_NKBd.size(2), op, "B");
  shape.max_blocks = as_int(block_tables_SM.size(1), op, "M");
  shape.q_stride = q_SHd.stride(0);
  shape.scale = static_cast<float>(scale);
  cuda::choose_attention_tile(shape);
  const int64_t longest = int64_t{shape.max_blocks} * shape.block_size;
  as_int(longest, op, "M * B");
  // Two blocks a multiprocessor fit by their shared memory, so that many keep the device busy.
  int num_processors = 0;
  check_launch(
      cudaDeviceGetAttribute(&num_processors, cudaDevAttrMultiProcessorCount, static_cast<int>(q_SHd.device().index())),
      op);
  cuda::choose_attention_splits(shape, q_SHd.size(0), longest, 2 * num_processors);
  Tensor partial;
  if (shape.num_splits > 1) {
    partial = at::empty({q_SHd.size(0), shape.num_heads, shape.num_splits, shape.head_size + 2},
                        q_SHd.options().dtype(at::kFloat));
  }
  check_launch(cuda::launch_paged_attention(
                   element_of(q_SHd), q_SHd.const_data_ptr(), k_cache_NKBd.const_data_ptr(),
                   v_cache_NKBd.const_data_ptr(), block_tables_SM.const_data_ptr<int32_t>(),
                   lengths_S.const_data_ptr<int32_t>(), partial.defined() ? partial.mutable_data_ptr<float>() : nullptr,
                   out_SHd.mutable_data_ptr(), q_SHd.size(0), shape, c10::cuda::getCurrentCUDAStream()),
               op);
  return out_SHd;
}

void fused_adamw_cuda_(Tensor& parameter, const Tensor& gradient, Tensor& exp_avg, Tensor& exp_avg_sq,
                       const AdamWArguments& arguments) {
  if (parameter.numel() == 0) return;
  const c10::cuda::CUDAGuard guard(parameter.device());
  check_launch(
      cuda::launch_adamw(parameter.mutable_data_ptr<float>(), element_of(gradient), gradient.const_data_ptr(),
                         exp_avg.mutable_data_ptr<float>(), exp_avg_sq.mutable_data_ptr<float>(), parameter.numel(),
                         cuda::adamw_constants(arguments), c10::cuda::getCurrentCUDAStream()),
      "fused_adamw_");
}

std::pair<Tensor, Tensor> sample_cuda(const Tensor& logits_SV, int64_t vocab_size, const Tensor& temperature_S,
                                      const Tensor& top_p_S, const Tensor& top_k_S, const Tensor& min_p_S,
                                      const Tensor& sample_ids_S, const Tensor& token_indices_S,
                                      const SampleArguments& arguments) {
  const c10::cuda::CUDAGuard guard(logits_SV.device());
  Tensor ids_S = at::empty({logits_SV.size(0)}, logits_SV.options().dtype(at::kLong));
  Tensor log_probs_S = at::empty({logits_SV.size(0)}, logits_SV.options().dtype(at::kFloat));
  if (logits_SV.size(0) == 0) return {ids_S, log_probs_S};
  require(vocab_size <= cuda::kMaxSampleVocab, "ops::sample: a vocabulary of ", vocab_size, " is beyond ",
          cuda::kMaxSampleVocab, " on CUDA");
  const cuda::SamplePointers pointers{temperature_S.const_data_ptr<float>(),  top_p_S.const_data_ptr<float>(),
                                      min_p_S.const_data_ptr<float>(),        top_k_S.const_data_ptr<int32_t>(),
                                      sample_ids_S.const_data_ptr<int64_t>(), token_indices_S.const_data_ptr<int32_t>(),
                                      ids_S.mutable_data_ptr<int64_t>(),      log_probs_S.mutable_data_ptr<float>()};
  check_launch(
      cuda::launch_sample(element_of(logits_SV), logits_SV.const_data_ptr(), logits_SV.size(0), logits_SV.size(1),
                          static_cast<int>(vocab_size), arguments.seed, pointers, c10::cuda::getCurrentCUDAStream()),
      "sample");
  return {ids_S, log_probs_S};
}

}  // namespace

void register_cuda_ops() {
  cuda_ops() = DeviceOps{&rms_norm_cuda, &write_kv_with_rope_cuda_, &paged_decode_attention_cuda, &fused_adamw_cuda_,
                         &sample_cuda};
}

}  // namespace troupe::ops
