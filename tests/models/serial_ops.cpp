// See serial_ops.h. Mirrors the launches of models/kernels/cuda/*.cu and the outputs of ops_cuda.cpp.
#include "tests/models/serial_ops.h"

#include "models/kernels/cuda/paged_attention_body.h"
#include "models/kernels/cuda/sample_body.h"
#include "models/kernels/cuda/training_body.h"

namespace troupe::testing {
namespace {

namespace cuda = ops::cuda;

/// A block whose threads run one after another; reductions add up in thread order.
template <ThreadOrder kOrder>
class SerialBlock {
 public:
  explicit SerialBlock(int size) : size_(size) {}
  int size() const { return size_; }

  template <class F>
  void each(F f) {
    for (int i = 0; i < size_; ++i) f(kOrder == ThreadOrder::kUp ? i : size_ - 1 - i);
  }
  template <class Value, class F, class Combine>
  Value reduce(F f, Combine combine) {
    Value value = f(0);
    for (int i = 1; i < size_; ++i) value = combine(value, static_cast<Value>(f(i)));
    return value;
  }

 private:
  int size_;
};

template <class F>
void by_element(const Tensor& tensor, const F& f) {
  if (tensor.scalar_type() == at::kFloat) {
    f(float{});
  } else {
    f(cuda::Bf16{});
  }
}

template <class T>
T* pointer(const Tensor& tensor) {
  return static_cast<T*>(tensor.data_ptr());
}

bool is_packed(const Tensor& tensor) { return reinterpret_cast<uintptr_t>(tensor.data_ptr()) % 16 == 0; }

template <ThreadOrder kOrder>
Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  Tensor y = at::empty_like(x);
  by_element(x, [&]<class T>(T) {
    const auto size = static_cast<int>(x.size(1));
    const bool packed = size % cuda::Pack<T>::kSize == 0 && is_packed(x) && is_packed(weight) && is_packed(y);
    for (int64_t row = 0; row < x.size(0); ++row) {
      SerialBlock<kOrder> block(128);
      cuda::rms_norm_row(block, pointer<T>(x) + row * size, pointer<T>(weight), pointer<T>(y) + row * size, size,
                         static_cast<float>(eps), packed);
    }
  });
  return y;
}

template <ThreadOrder kOrder>
void write_kv_with_rope(Tensor& q, Tensor& k, const Tensor& v, const Tensor& positions, const Tensor& slots,
                        const Tensor& inverse_frequencies, Tensor& k_cache, Tensor& v_cache) {
  const cuda::RopeShape shape{static_cast<int>(q.size(1)),
                              static_cast<int>(k.size(1)),
                              static_cast<int>(q.size(2)),
                              static_cast<int>(k_cache.size(2)),
                              q.stride(0),
                              k.stride(0),
                              v.stride(0)};
  by_element(q, [&]<class T>(T) {
    for (int64_t row = 0; row < q.size(0); ++row) {
      SerialBlock<kOrder> block(256);
      cuda::rope_cache_row(block, pointer<T>(q) + row * shape.q_stride, pointer<T>(k) + row * shape.k_stride,
                           pointer<T>(v) + row * shape.v_stride, positions.data_ptr<int32_t>()[row],
                           slots.data_ptr<int64_t>()[row], inverse_frequencies.data_ptr<float>(), pointer<T>(k_cache),
                           pointer<T>(v_cache), shape);
    }
  });
}

template <ThreadOrder kOrder>
Tensor attention(int num_blocks_wanted, const Tensor& q, const Tensor& k_cache, const Tensor& v_cache,
                 const Tensor& block_tables, const Tensor& lengths, double scale) {
  Tensor out = at::full(q.sizes(), NAN, q.options());
  cuda::AttentionShape shape{};
  shape.num_heads = static_cast<int>(q.size(1));
  shape.num_kv_heads = static_cast<int>(k_cache.size(1));
  shape.head_size = static_cast<int>(q.size(2));
  shape.block_size = static_cast<int>(k_cache.size(2));
  shape.max_blocks = static_cast<int>(block_tables.size(1));
  shape.q_stride = q.stride(0);
  shape.scale = static_cast<float>(scale);
  cuda::choose_attention_tile(shape);
  cuda::choose_attention_splits(shape, q.size(0), int64_t{shape.max_blocks} * shape.block_size, num_blocks_wanted);
  const int d = shape.head_size, group = shape.num_heads / shape.num_kv_heads;
  std::vector<float> memory(cuda::AttentionShared::num_floats(shape.heads_per_chunk, d, shape.tile), NAN);
  const Tensor partial = at::full({q.size(0), shape.num_heads, shape.num_splits, d + 2}, NAN);
  by_element(q, [&]<class T>(T) {
    for (int64_t s = 0; s < q.size(0); ++s) {
      T* row = pointer<T>(out) + s * shape.num_heads * d;
      float* partial_row = partial.data_ptr<float>() + s * partial.stride(0);
      for (int kv_head = 0; kv_head < shape.num_kv_heads; ++kv_head) {
        for (int first = 0; first < group; first += shape.heads_per_chunk) {
          for (int split = 0; split < shape.num_splits; ++split) {
            SerialBlock<kOrder> block(128);
            const cuda::AttentionShared shared(memory.data(), shape.heads_per_chunk, d, shape.tile);
            cuda::attend_split(block, pointer<T>(q) + s * shape.q_stride, pointer<T>(k_cache), pointer<T>(v_cache),
                               block_tables.data_ptr<int32_t>() + s * shape.max_blocks, lengths.data_ptr<int32_t>()[s],
                               kv_head, kv_head * group + first, std::min(shape.heads_per_chunk, group - first), split,
                               row, partial_row, shared, shape);
          }
        }
      }
      for (int head = 0; shape.num_splits > 1 && head < shape.num_heads; ++head) {
        SerialBlock<kOrder> block(64);
        cuda::merge_splits(block, partial_row + int64_t{head} * shape.num_splits * (d + 2), row + head * d,
                           shape.num_splits, d);
      }
    }
  });
  return out;
}

template <ThreadOrder kOrder>
Tensor attention_on_large_device(const Tensor& q, const Tensor& k_cache, const Tensor& v_cache,
                                 const Tensor& block_tables, const Tensor& lengths, double scale) {
  return attention<kOrder>(2 * 132, q, k_cache, v_cache, block_tables, lengths, scale);
}

void fused_adamw(Tensor& parameter, const Tensor& gradient, Tensor& exp_avg, Tensor& exp_avg_sq,
                 const ops::AdamWArguments& arguments) {
  const cuda::AdamWConstants constants = cuda::adamw_constants(arguments);
  by_element(gradient, [&]<class T>(T) {
    for (int64_t i = 0; i < parameter.numel(); ++i) {
      cuda::adamw_element(pointer<float>(parameter)[i], cuda::to_float(pointer<T>(gradient)[i]),
                          pointer<float>(exp_avg)[i], pointer<float>(exp_avg_sq)[i], constants);
    }
  });
}

template <ThreadOrder kOrder>
std::pair<Tensor, Tensor> sample(const Tensor& logits, int64_t vocab_size, const Tensor& temperature,
                                 const Tensor& top_p, const Tensor& top_k, const Tensor& min_p,
                                 const Tensor& sample_ids, const Tensor& token_indices,
                                 const ops::SampleArguments& arguments) {
  Tensor ids = at::empty({logits.size(0)}, at::kLong), log_probs = at::empty({logits.size(0)});
  const auto shared = std::make_unique<cuda::SampleShared>();
  by_element(logits, [&]<class T>(T) {
    for (int64_t i = 0; i < logits.size(0); ++i) {
      SerialBlock<kOrder> block(cuda::kSampleThreads);
      const cuda::SampleRow row{temperature.data_ptr<float>()[i],
                                top_p.data_ptr<float>()[i],
                                min_p.data_ptr<float>()[i],
                                top_k.data_ptr<int32_t>()[i],
                                arguments.seed,
                                static_cast<uint64_t>(sample_ids.data_ptr<int64_t>()[i]),
                                static_cast<uint32_t>(token_indices.data_ptr<int32_t>()[i])};
      cuda::sample_row(block, pointer<T>(logits) + i * logits.size(1), static_cast<int>(vocab_size), row, *shared,
                       ids.data_ptr<int64_t>() + i, log_probs.data_ptr<float>() + i);
    }
  });
  return {ids, log_probs};
}

template <ThreadOrder kOrder>
ops::DeviceOps all_ops() {
  return {&rms_norm<kOrder>, &write_kv_with_rope<kOrder>, &attention_on_large_device<kOrder>, &fused_adamw,
          &sample<kOrder>};
}

}  // namespace

ops::DeviceOps serial_cuda_ops(ThreadOrder order) {
  return order == ThreadOrder::kUp ? all_ops<ThreadOrder::kUp>() : all_ops<ThreadOrder::kDown>();
}

Tensor serial_attention(ThreadOrder order, int num_blocks_wanted, const Tensor& q_SHd, const Tensor& k_cache_NKBd,
                        const Tensor& v_cache_NKBd, const Tensor& block_tables_SM, const Tensor& lengths_S,
                        double scale) {
  const auto function = order == ThreadOrder::kUp ? &attention<ThreadOrder::kUp> : &attention<ThreadOrder::kDown>;
  return function(num_blocks_wanted, q_SHd, k_cache_NKBd, v_cache_NKBd, block_tables_SM, lengths_S, scale);
}

}  // namespace troupe::testing
