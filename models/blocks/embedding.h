// Token embedding as an autograd function.
#pragma once

#include "models/torch.h"

namespace troupe::blocks {

/// Rows of weight_VD for tokens_T (int64 or int32) -> [T, D]. Throws Error naming the first id outside of the
/// vocabulary.
Tensor embedding(const Tensor& tokens_T, const Tensor& weight_VD);

}  // namespace troupe::blocks
