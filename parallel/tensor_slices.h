// Slices of a tensor as boxes (start and size by dimension), and the runs of consecutive elements that they cover.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace troupe {

struct TensorBox {
  std::vector<int64_t> start, size;
  bool operator==(const TensorBox&) const = default;
};

/// Elements [begin, end) of the flattened tensor as boxes in order; each box's elements are consecutive. A rank's part
/// of a matrix is at most three: the rest of a row, whole rows, the begin of a row.
std::vector<TensorBox> boxes_of_range(const std::vector<int64_t>& shape, int64_t begin, int64_t end);

/// Calls visit(flat index in the whole tensor, index in the box, length) for each run of consecutive elements.
void for_each_run(const std::vector<int64_t>& shape, const TensorBox& box,
                  const std::function<void(int64_t flat, int64_t in_box, int64_t length)>& visit);

}  // namespace troupe
