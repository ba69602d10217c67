// Checks and positions of packed rows.
#include "models/layout.h"

#include <algorithm>

#include "base/error.h"

namespace troupe {

std::vector<int32_t> PackedLayout::positions() const {
  std::vector<int32_t> positions(num_tokens);
  for (const Segment& segment : segments) {
    const int32_t first = segment.parent < 0 ? 0 : segments[segment.parent].length;
    for (int32_t i = 0; i < segment.length; ++i) positions[segment.begin + i] = first + i;
  }
  return positions;
}

std::vector<int32_t> PackedLayout::document_lengths() const {
  std::vector<int32_t> of_root(segments.size());
  const auto root = [&](size_t i) { return segments[i].parent < 0 ? i : static_cast<size_t>(segments[i].parent); };
  for (size_t i = 0; i < segments.size(); ++i) {
    const int32_t shared = segments[i].parent < 0 ? 0 : segments[root(i)].length;
    of_root[root(i)] = std::max(of_root[root(i)], shared + segments[i].length);
  }
  std::vector<int32_t> lengths(num_tokens);
  for (size_t i = 0; i < segments.size(); ++i) {
    std::fill_n(lengths.begin() + segments[i].begin, segments[i].length, of_root[root(i)]);
  }
  return lengths;
}

void PackedLayout::check() const {
  int32_t end = 0;
  for (size_t i = 0; i < segments.size(); ++i) {
    const Segment& segment = segments[i];
    require(segment.begin == end, "packed layout: segment ", i, " begins at ", segment.begin, ", expected ", end);
    require(segment.length > 0, "packed layout: segment ", i, " is empty");
    require(segment.parent >= -1 && segment.parent < static_cast<int32_t>(i), "packed layout: segment ", i,
            " has parent ", segment.parent, ", which is not an earlier segment");
    require(segment.parent < 0 || segments[segment.parent].parent < 0, "packed layout: the parent ", segment.parent,
            " of segment ", i, " has a parent itself");
    require(segment.length <= INT32_MAX - end, "packed layout: too many tokens");
    end += segment.length;
  }
  require(end == num_tokens, "packed layout: segments hold ", end, " tokens, the row ", num_tokens);
}

}  // namespace troupe
