// CPU versions of the ops of decoding (ops_cpu.h) over the kernels of decode_kernels.h. Rows are shared over at::'s
// threads; arguments were checked by ops_dispatch_decode.cpp.
#include <cmath>

#include "base/error.h"
#include "base/philox.h"
#include "models/kernels/decode_kernels.h"
#include "models/kernels/decode_sampling.h"
#include "models/kernels/ops_cpu.h"

namespace troupe::ops::cpu {
namespace {

template <class T>
T* data(const Tensor& tensor) {
  return static_cast<T*>(tensor.data_ptr());
}

/// Calls `function` with the kernels of the tensor's dtype.
template <class Function>
void by_dtype(const Tensor& tensor, Function&& function) {
  if (tensor.scalar_type() == at::kFloat) {
    function(decode_kernels().f32, float{});
  } else {
    function(decode_kernels().bf16, Bf16{});
  }
}

template <class T>
void rotate_heads(const TypedDecodeKernels<T>& kernels, T* row, int64_t num_heads, int64_t head_size,
                  const float* cosines, const float* sines, float* head) {
  for (int64_t h = 0; h < num_heads; ++h, row += head_size) {
    kernels.widen(row, head_size, head);
    decode_kernels().rotate(head, cosines, sines, head_size / 2);
    kernels.convert(head, head_size, row);
  }
}

}  // namespace

void write_kv_with_rope_(Tensor& q_SHd, Tensor& k_SKd, const Tensor& v_SKd, const Tensor& positions_S,
                         const Tensor& slots_S, const Tensor& inverse_frequencies, Tensor& k_cache_NKBd,
                         Tensor& v_cache_NKBd) {
  const int64_t d = q_SHd.size(2), num_kv_heads = k_SKd.size(1), block_tokens = k_cache_NKBd.size(2);
  const auto* positions = positions_S.data_ptr<int32_t>();
  const auto* slots = slots_S.data_ptr<int64_t>();
  const auto* frequencies = inverse_frequencies.data_ptr<float>();
  by_dtype(q_SHd, [&]<class T>(const TypedDecodeKernels<T>& kernels, T) {
    at::parallel_for(0, q_SHd.size(0), 16, [&](int64_t begin, int64_t end) {
      std::vector<float> cosines(d / 2), sines(d / 2), head(d);
      for (int64_t s = begin; s < end; ++s) {
        for (int64_t i = 0; i < d / 2; ++i) {
          const float angle = static_cast<float>(positions[s]) * frequencies[i];
          cosines[i] = std::cos(angle);
          sines[i] = std::sin(angle);
        }
        T* key = data<T>(k_SKd) + s * k_SKd.stride(0);
        const T* value = data<T>(v_SKd) + s * v_SKd.stride(0);
        rotate_heads(kernels, data<T>(q_SHd) + s * q_SHd.stride(0), q_SHd.size(1), d, cosines.data(), sines.data(),
                     head.data());
        rotate_heads(kernels, key, num_kv_heads, d, cosines.data(), sines.data(), head.data());
        if (slots[s] < 0) continue;
        for (int64_t h = 0; h < num_kv_heads; ++h) {
          const int64_t row = (slots[s] / block_tokens * num_kv_heads + h) * block_tokens + slots[s] % block_tokens;
          std::copy_n(key + h * d, d, data<T>(k_cache_NKBd) + row * d);
          std::copy_n(value + h * d, d, data<T>(v_cache_NKBd) + row * d);
        }
      }
    });
  });
}

Tensor paged_decode_attention(const Tensor& q_SHd, const Tensor& k_cache_NKBd, const Tensor& v_cache_NKBd,
                              const Tensor& block_tables_SM, const Tensor& lengths_S, double scale) {
  const int64_t d = q_SHd.size(2), num_kv_heads = k_cache_NKBd.size(1), group = q_SHd.size(1) / num_kv_heads;
  const int64_t block_tokens = k_cache_NKBd.size(2), columns = block_tables_SM.size(1);
  const int64_t scores_stride = (columns * block_tokens + 15) / 16 * 16;
  const auto* lengths = lengths_S.data_ptr<int32_t>();
  for (int64_t s = 0; s < q_SHd.size(0); ++s) {
    require(lengths[s] <= columns * block_tokens, "ops::paged_decode_attention: length ", lengths[s], " of row ", s,
            " goes past its ", columns, " blocks of ", block_tokens);
  }
  Tensor out_SHd = at::zeros(q_SHd.sizes(), q_SHd.options());
  by_dtype(q_SHd, [&]<class T>(const TypedDecodeKernels<T>& kernels, T) {
    at::parallel_for(0, q_SHd.size(0) * num_kv_heads, 4, [&](int64_t begin, int64_t end) {
      std::vector<float> query(group * d), scores(group * scores_stride);
      for (int64_t i = begin; i < end; ++i) {
        const int64_t s = i / num_kv_heads, h = i % num_kv_heads;
        if (lengths[s] <= 0) continue;
        kernels.widen(data<T>(q_SHd) + s * q_SHd.stride(0) + h * group * d, group * d, query.data());
        AttentionTask<T> task;
        task.query = query.data();
        task.keys = data<T>(k_cache_NKBd) + h * block_tokens * d;
        task.values = data<T>(v_cache_NKBd) + h * block_tokens * d;
        task.blocks = block_tables_SM.data_ptr<int32_t>() + s * columns;
        task.block_stride = num_kv_heads * block_tokens * d;
        task.block_tokens = block_tokens;
        task.length = lengths[s];
        task.num_heads = group;
        task.head_size = d;
        task.scale = static_cast<float>(scale);
        task.scores = scores.data();
        task.scores_stride = scores_stride;
        task.out = data<T>(out_SHd) + (s * num_kv_heads + h) * group * d;
        kernels.attend(task);
      }
    });
  });
  return out_SHd;
}

std::pair<Tensor, Tensor> sample(const Tensor& logits_SV, int64_t vocab_size, const Tensor& temperature_S,
                                 const Tensor& top_p_S, const Tensor& top_k_S, const Tensor& min_p_S,
                                 const Tensor& sample_ids_S, const Tensor& token_indices_S,
                                 const SampleArguments& arguments) {
  const int64_t num_rows = logits_SV.size(0);
  Tensor ids_S = at::empty({num_rows}, logits_SV.options().dtype(at::kLong));
  Tensor log_probs_S = at::empty({num_rows}, logits_SV.options().dtype(at::kFloat));
  const Tensor float_logits_SV = logits_SV.to(at::kFloat);
  at::parallel_for(0, num_rows, 1, [&](int64_t begin, int64_t end) {
    SamplingScratch scratch;
    for (int64_t s = begin; s < end; ++s) {
      const SamplingRule rule{temperature_S.data_ptr<float>()[s], top_p_S.data_ptr<float>()[s],
                              top_k_S.data_ptr<int32_t>()[s], min_p_S.data_ptr<float>()[s]};
      const double uniform =
          random_uniform(arguments.seed, static_cast<uint64_t>(sample_ids_S.data_ptr<int64_t>()[s]),
                         static_cast<uint32_t>(token_indices_S.data_ptr<int32_t>()[s]), RandomStream::kSampling);
      const auto token = sample_token(decode_kernels(), float_logits_SV.data_ptr<float>() + s * logits_SV.size(1),
                                      vocab_size, rule, uniform, scratch);
      ids_S.data_ptr<int64_t>()[s] = token.id;
      log_probs_S.data_ptr<float>()[s] = token.log_prob;
    }
  });
  for (int64_t s = 0; s < num_rows; ++s) {
    require(ids_S.data_ptr<int64_t>()[s] >= 0, "ops::sample: the logits of row ", s, " are not finite");
  }
  return {ids_S, log_probs_S};
}

}  // namespace troupe::ops::cpu
