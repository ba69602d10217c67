// Chooses the attention kernel by device and dtype.
#include "models/kernels/attention.h"

#include "models/kernels/attention_reference.h"

namespace troupe::kernels {

AttentionResult attention_forward(const Tensor& qkv_TE, const PackedLayout& layout, const AttentionShape& shape) {
  return attention_forward_reference(qkv_TE, layout, shape);
}

Tensor attention_backward(const Tensor& d_output, const Tensor& qkv_TE, const AttentionResult& result,
                          const PackedLayout& layout, const AttentionShape& shape) {
  return attention_backward_reference(d_output, qkv_TE, result, layout, shape);
}

}  // namespace troupe::kernels
