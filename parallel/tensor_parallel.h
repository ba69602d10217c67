// Collectives over the tensor ranks as differentiable operations, whole tokens or a part of the tokens between layers.
//
//   sequence parallel   enter: all-gather of tokens (backward: reduce-scatter)   leave: the reverse
//   whole tokens        enter: as it is (backward: all-reduce)                   leave: all-reduce (backward: as it is)
#pragma once

#include "models/torch.h"
#include "parallel/collectives.h"

namespace troupe {

/// x_TD (with `sequence_parallel` this rank's T / size tokens) -> all T tokens.
Tensor enter_tensor_parallel(const Tensor& x_TD, Collectives& tensor, bool sequence_parallel);
/// Sum over ranks of y_TD -> all T tokens, or this rank's T / size (T is then a multiple of the size).
Tensor leave_tensor_parallel(const Tensor& y_TD, Collectives& tensor, bool sequence_parallel);
/// Rows of a table of which this rank holds tokens [begin, begin + rows): zeros for other tokens.
Tensor embed_part(const Tensor& tokens_T, const Tensor& weight_VD, int64_t begin);

}  // namespace troupe
