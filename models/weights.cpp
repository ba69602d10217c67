#include "models/weights.h"

#include "base/cpu.h"
#include "base/error.h"

namespace troupe {

at::ScalarType compute_dtype(const std::string& name) {
  if (name == "float32") return at::kFloat;
  if (name == "bfloat16") return at::kBFloat16;
  if (name == "auto" || name.empty()) return has_fast_bf16() ? at::kBFloat16 : at::kFloat;
  throw UsageError(concat("dtype \"", name, "\" is not known; known: auto, float32, bfloat16"));
}

}  // namespace troupe
