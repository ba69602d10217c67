// Rotary position embedding: the table.
#include "models/blocks/rope.h"

#include <cmath>

namespace troupe::blocks {

Tensor rope_table(const RopeConfig& rope, int64_t head_dim, const std::vector<int32_t>& positions, at::ScalarType dtype,
                  at::Device device) {
  const auto frequencies = rope_inverse_frequencies(rope, head_dim);
  const auto half = static_cast<int64_t>(frequencies.size());
  const auto num_tokens = static_cast<int64_t>(positions.size());
  const bool is_double = dtype == at::kDouble;
  Tensor table = at::empty({num_tokens, head_dim}, is_double ? at::kDouble : at::kFloat);
  const auto fill = [&]<class Scalar>(Scalar* out) {
    at::parallel_for(0, num_tokens, 64, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        for (int64_t i = 0; i < half; ++i) {
          const Scalar angle = static_cast<Scalar>(positions[t]) * static_cast<Scalar>(frequencies[i]);
          out[t * head_dim + i] = static_cast<Scalar>(std::cos(static_cast<double>(angle)));
          out[t * head_dim + half + i] = static_cast<Scalar>(std::sin(static_cast<double>(angle)));
        }
      }
    });
  };
  if (is_double) {
    fill(table.mutable_data_ptr<double>());
  } else {
    fill(table.mutable_data_ptr<float>());
  }
  return table.to(device);
}

}  // namespace troupe::blocks
