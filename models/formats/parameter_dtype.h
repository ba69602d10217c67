// In which dtype a parameter is read and written.
#pragma once

#include "models/config.h"
#include "models/torch.h"

namespace troupe {

/// Among weights of `dtype` a parameter that is not trained is a constant and never narrower than fp32: transformers
/// keeps the bias by which routers choose so, and bf16 would change the choices.
inline at::ScalarType dtype_of(const ParameterSpec& spec, at::ScalarType dtype) {
  return spec.is_trained || dtype == at::kDouble ? dtype : at::kFloat;
}

}  // namespace troupe
