// Which tokens of a packed row each context rank keeps. The row is padded to a whole number of equal chunks, 2 a rank;
// a causal row's late tokens see most, so with balance each rank takes a chunk from the head and one from the tail:
//
//   4 ranks, head-tail:  | 0 | 1 | 2 | 3 | 3 | 2 | 1 | 0 |         without:  | 0 | 0 | 1 | 1 | 2 | 2 | 3 | 3 |
//
// Padding is a document of its own at the end of the row: no token sees it, none of its tokens has a target.
#pragma once

#include "models/layout.h"

namespace troupe {

class ContextTokens {
 public:
  /// Ranks keep a multiple of `multiple` tokens each.
  ContextTokens(int64_t num_tokens, int rank, int size, bool head_tail, int64_t multiple = 1);

  int64_t num_padded() const { return chunk_ * 2 * size_; }
  int64_t num_local() const { return chunk_ * 2; }
  int64_t chunk() const { return chunk_; }
  /// The two chunks of a rank, in the row's order.
  std::pair<int64_t, int64_t> chunks(int rank) const;
  /// Places in the padded row of this rank's tokens, in order.
  std::vector<int64_t> places() const;
  /// Where this rank keeps the token at `place`; -1: another rank does.
  int64_t local_place(int64_t place) const;

 private:
  int64_t chunk_ = 0;
  int rank_, size_;
  bool head_tail_;
};

/// The layout with its padding as a further document.
PackedLayout padded_layout(const PackedLayout& layout, int64_t num_padded);

}  // namespace troupe
