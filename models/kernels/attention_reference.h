// The plain form of models/kernels/attention.h, for devices and dtypes without a kernel, and for tests.
#pragma once

#include "models/kernels/attention.h"

namespace troupe::kernels {

AttentionResult attention_forward_reference(const Tensor& qkv_TE, const PackedLayout& layout,
                                            const AttentionShape& shape);
Tensor attention_backward_reference(const Tensor& d_output, const Tensor& qkv_TE, const AttentionResult& result,
                                    const PackedLayout& layout, const AttentionShape& shape);

}  // namespace troupe::kernels
