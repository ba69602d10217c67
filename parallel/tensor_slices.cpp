#include "parallel/tensor_slices.h"

#include <algorithm>

namespace troupe {
namespace {

void add_boxes(const std::vector<int64_t>& shape, size_t dim, TensorBox prefix, int64_t begin, int64_t end,
               std::vector<TensorBox>& boxes) {
  if (begin >= end) return;
  int64_t inner = 1;
  for (size_t i = dim + 1; i < shape.size(); ++i) inner *= shape[i];
  const auto add_rows = [&](int64_t first, int64_t last) {
    if (first >= last) return;
    auto box = prefix;
    box.start[dim] = first;
    box.size[dim] = last - first;
    boxes.push_back(std::move(box));
  };
  const auto add_part = [&](int64_t row, int64_t from, int64_t to) {
    auto box = prefix;
    box.start[dim] = row;
    box.size[dim] = 1;
    add_boxes(shape, dim + 1, box, from, to, boxes);
  };
  const int64_t first = begin / inner, last = end / inner;
  if (first == last) return add_part(first, begin % inner, end % inner);
  const bool starts_inside = begin % inner != 0;
  if (starts_inside) add_part(first, begin % inner, inner);
  add_rows(first + (starts_inside ? 1 : 0), last);
  if (end % inner != 0) add_part(last, 0, end % inner);
}

}  // namespace

std::vector<TensorBox> boxes_of_range(const std::vector<int64_t>& shape, int64_t begin, int64_t end) {
  std::vector<TensorBox> boxes;
  if (shape.empty()) {
    if (begin < end) boxes.push_back({});
    return boxes;
  }
  add_boxes(shape, 0, {std::vector<int64_t>(shape.size(), 0), shape}, begin, end, boxes);
  return boxes;
}

void for_each_run(const std::vector<int64_t>& shape, const TensorBox& box,
                  const std::function<void(int64_t flat, int64_t in_box, int64_t length)>& visit) {
  // Trailing dimensions that the box covers whole run on into one another; the one before them is cut once.
  size_t dim = shape.size();
  int64_t length = 1, covered = 1;
  while (dim > 0) {
    --dim;
    length = covered * box.size[dim];
    if (box.size[dim] != shape[dim]) break;
    covered *= shape[dim];
  }
  int64_t num_runs = 1;
  for (size_t i = 0; i < dim; ++i) num_runs *= box.size[i];
  if (length == 0) return;
  for (int64_t run = 0; run < num_runs; ++run) {
    int64_t rest = run, flat = 0, stride = 1;
    for (size_t i = shape.size(); i-- > 0;) {
      int64_t index = box.start[i];
      if (i < dim) {
        index += rest % box.size[i];
        rest /= box.size[i];
      }
      flat += index * stride;
      stride *= shape[i];
    }
    visit(flat, run * length, length);
  }
}

}  // namespace troupe
