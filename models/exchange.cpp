// One device: nothing to exchange.
#include "models/exchange.h"

#include "models/blocks/embedding.h"

namespace troupe {

Tensor Exchange::embed(const Tensor& tokens_T, const Tensor& weight_VD) const {
  return blocks::embedding(tokens_T, weight_VD);
}

kernels::AttentionResult Exchange::attention_forward(const Tensor& qkv_TE, const PackedLayout& layout,
                                                     const kernels::AttentionShape& shape) const {
  return kernels::attention_forward(qkv_TE, layout, shape);
}

Tensor Exchange::attention_backward(const Tensor& d_output, const Tensor& qkv_TE,
                                    const kernels::AttentionResult& result, const PackedLayout& layout,
                                    const kernels::AttentionShape& shape) const {
  return kernels::attention_backward(d_output, qkv_TE, result, layout, shape);
}

}  // namespace troupe
