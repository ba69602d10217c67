#include "training/value_loss.h"

namespace troupe {

Tensor value_loss(const Tensor& values_N, const Tensor& old_values_N, const Tensor& returns_N,
                  std::optional<double> clip) {
  const auto returns = returns_N.detach();
  const auto squared = (values_N - returns).square();
  if (!clip) return squared / 2;
  const auto old_values = old_values_N.detach();
  const auto near = old_values + (values_N - old_values).clamp(-*clip, *clip);
  return at::maximum(squared, (near - returns).square()) / 2;
}

}  // namespace troupe
