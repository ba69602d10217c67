// Slices of a tensor as boxes: start and size by dimension.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace troupe {

struct TensorBox {
  std::vector<int64_t> start, size;
  bool operator==(const TensorBox&) const = default;
};

/// Elements [begin, end) of the flattened tensor as boxes in order; each box's elements are consecutive. A rank's part
/// of a matrix is at most three: the rest of a row, whole rows, the begin of a row.
std::vector<TensorBox> boxes_of_range(const std::vector<int64_t>& shape, int64_t begin, int64_t end);

/// The same for elements of a part of a tensor, flattened by itself; boxes are of the whole tensor.
std::vector<TensorBox> boxes_in_part(const TensorBox& part, int64_t begin, int64_t end);

/// What two boxes have in common; none where they do not meet.
std::optional<TensorBox> intersection(const TensorBox& a, const TensorBox& b);

}  // namespace troupe
