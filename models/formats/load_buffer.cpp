#include "models/formats/load_buffer.h"

#include <sys/mman.h>

namespace troupe {

Tensor empty_for_loading(at::IntArrayRef shape, at::ScalarType dtype) {
  constexpr uintptr_t kHugePageBytes = uintptr_t{2} << 20;
  auto tensor = at::empty(shape, at::TensorOptions().dtype(dtype));
  const auto begin = reinterpret_cast<uintptr_t>(tensor.mutable_data_ptr());
  const auto first = (begin + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  const auto last = (begin + tensor.nbytes()) / kHugePageBytes * kHugePageBytes;
  // Advice only: where the system refuses, small pages serve.
  if (first < last) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
  return tensor;
}

}  // namespace troupe
