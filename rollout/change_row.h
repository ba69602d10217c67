// Arithmetic in fp32 on a row that is kept in the weights' type.
#pragma once

#include <algorithm>

#include "rollout/forward_state.h"

namespace troupe {

/// to[i] = change(i, from[i]) for i below `count`; `to` may be `from`.
template <class T, class Change>
void change_row(const TypedDecodeKernels<T>& kernels, const T* from, int64_t count, T* to, const Change& change) {
  float wide[kPanelColumns];
  for (int64_t begin = 0; begin < count; begin += kPanelColumns) {
    const int64_t columns = std::min(kPanelColumns, count - begin);
    kernels.widen(from + begin, columns, wide);
    for (int64_t i = 0; i < columns; ++i) wide[i] = change(begin + i, wide[i]);
    kernels.convert(wide, columns, to + begin);
  }
}

}  // namespace troupe
