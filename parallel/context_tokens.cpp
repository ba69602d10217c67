#include "parallel/context_tokens.h"

namespace troupe {

ContextTokens::ContextTokens(int64_t num_tokens, int rank, int size, bool head_tail, int64_t multiple)
    : rank_(rank), size_(size), head_tail_(head_tail) {
  const int64_t num_chunks = 2 * size;
  chunk_ = (num_tokens + num_chunks - 1) / num_chunks;
  chunk_ = (chunk_ + multiple - 1) / multiple * multiple;
}

std::pair<int64_t, int64_t> ContextTokens::chunks(int rank) const {
  return head_tail_ ? std::pair<int64_t, int64_t>(rank, 2 * size_ - 1 - rank)
                    : std::pair<int64_t, int64_t>(2 * rank, 2 * rank + 1);
}

std::vector<int64_t> ContextTokens::places() const {
  std::vector<int64_t> places;
  const auto [first, second] = chunks(rank_);
  for (const int64_t chunk : {first, second})
    for (int64_t i = 0; i < chunk_; ++i) places.push_back(chunk * chunk_ + i);
  return places;
}

int64_t ContextTokens::local_place(int64_t place) const {
  const auto [first, second] = chunks(rank_);
  const int64_t chunk = place / chunk_;
  if (chunk == first) return place % chunk_;
  return chunk == second ? chunk_ + place % chunk_ : -1;
}

PackedLayout padded_layout(const PackedLayout& layout, int64_t num_padded) {
  auto padded = layout;
  if (num_padded == layout.num_tokens) return padded;
  padded.segments.push_back({layout.num_tokens, static_cast<int32_t>(num_padded) - layout.num_tokens, -1});
  padded.num_tokens = static_cast<int32_t>(num_padded);
  return padded;
}

}  // namespace troupe
