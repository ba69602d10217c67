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

std::vector<TensorBox> boxes_in_part(const TensorBox& part, int64_t begin, int64_t end) {
  auto boxes = boxes_of_range(part.size, begin, end);
  for (auto& box : boxes)
    for (size_t i = 0; i < part.start.size(); ++i) box.start[i] += part.start[i];
  return boxes;
}

std::optional<TensorBox> intersection(const TensorBox& a, const TensorBox& b) {
  auto common = a;
  for (size_t i = 0; i < a.start.size(); ++i) {
    common.start[i] = std::max(a.start[i], b.start[i]);
    common.size[i] = std::min(a.start[i] + a.size[i], b.start[i] + b.size[i]) - common.start[i];
    if (common.size[i] <= 0) return std::nullopt;
  }
  return common;
}

}  // namespace troupe
