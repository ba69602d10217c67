// Memory for weights that are about to be read.
#pragma once

#include "models/torch.h"

namespace troupe {

/// Like at::empty, but asks for huge pages where the tensor is large: a page fault per 2 MiB instead of per 4 KiB,
/// which is most of the time that a cached file takes to load.
Tensor empty_for_loading(at::IntArrayRef shape, at::ScalarType dtype);

}  // namespace troupe
