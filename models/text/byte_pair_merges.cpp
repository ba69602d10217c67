// How byte pairs merge: short pieces by scanning, long ones with a heap, whole texts part by part.
#include <algorithm>
#include <limits>
#include <queue>

#include "models/text/byte_pair_model.h"
#include "models/text/unicode.h"

namespace troupe {
namespace {

constexpr size_t kNumJoints = size_t{1} << 22;
constexpr size_t kShortPiece = 48;  // tokens up to which scanning for the best pair beats a heap

size_t joint(int32_t left, int32_t right) {
  return mix_pair(static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right)) &
         (kNumJoints - 1);
}

}  // namespace

// Where pieces are whole texts, two neighbours that stand side by side in no merge part the text for good: what lies
// between such places merges by itself. The table answers "perhaps" now and then where the answer is no.
void BytePairModel::find_joints() {
  std::unordered_map<int32_t, std::pair<int32_t, int32_t>>
      ends;  // the initial tokens that a token begins and ends with
  for (const auto& [token, id] : vocabulary_) {
    if (token.empty()) continue;
    size_t last = token.size() - 1;
    while (last > 0 && (static_cast<unsigned char>(token[last]) & 0xC0) == 0x80) --last;
    const std::string_view text = token;
    ends[id] = {character_id(text.substr(0, utf8_width(token[0]))), character_id(text.substr(last))};
  }
  for (const int32_t id : byte_ids_) ends[id] = {id, id};
  joints_.assign(kNumJoints, false);
  for (const Merge& merge : merges_) {
    if (merge.pair == kNoPair) continue;
    const auto left = static_cast<int32_t>(merge.pair >> 32), right = static_cast<int32_t>(merge.pair);
    joints_[joint(ends[left].second, ends[right].first)] = true;
  }
}

bool BytePairModel::may_join(int32_t left, int32_t right) const { return joints_[joint(left, right)]; }

void BytePairModel::merge_tokens(std::string_view piece, std::vector<TokenSpan>& out) const {
  const size_t first = out.size();
  initial_tokens(piece, out);
  if (!joints_.empty()) {
    merge_parts(piece, out, first);
  } else if (out.size() - first <= kShortPiece) {
    merge_short(out, first);
  } else {
    merge_long(out, first);
  }
}

void BytePairModel::merge_short(std::vector<TokenSpan>& tokens, size_t first) const {
  size_t count = tokens.size() - first;
  if (count < 2) return;
  const Merge* merges[kShortPiece];  // merges[i]: of tokens i and i + 1
  TokenSpan* at = tokens.data() + first;
  for (size_t i = 0; i + 1 < count; ++i) merges[i] = find_merge(at[i].id, at[i + 1].id);
  for (;;) {
    size_t best = count;
    uint32_t best_rank = std::numeric_limits<uint32_t>::max();
    for (size_t i = 0; i + 1 < count; ++i) {
      if (merges[i] != nullptr && merges[i]->rank < best_rank) {
        best_rank = merges[i]->rank;
        best = i;
      }
    }
    if (best == count) break;
    at[best] = {merges[best]->id, at[best].num_bytes + at[best + 1].num_bytes};
    for (size_t i = best + 1; i + 1 < count; ++i) {
      at[i] = at[i + 1];
      merges[i - 1] = merges[i];
    }
    --count;
    if (best + 1 < count) merges[best] = find_merge(at[best].id, at[best + 1].id);
    if (best > 0) merges[best - 1] = find_merge(at[best - 1].id, at[best].id);
  }
  tokens.resize(first + count);
}

void BytePairModel::merge_parts(std::string_view piece, std::vector<TokenSpan>& tokens, size_t first) const {
  const size_t count = tokens.size();
  size_t out = first, at = 0;  // at: in the piece, where it is known
  size_t num_bytes = 0;
  for (size_t i = first; i < count; ++i) num_bytes += tokens[i].num_bytes;
  const bool known_places = num_bytes == piece.size() && !ignore_merges_;
  std::vector<TokenSpan> part;
  for (size_t begin = first, end; begin < count; begin = end) {
    size_t size = tokens[begin].num_bytes;
    for (end = begin + 1; end < count && may_join(tokens[end - 1].id, tokens[end].id); ++end) {
      size += tokens[end].num_bytes;
    }
    const auto text = known_places ? piece.substr(at, size) : std::string_view();
    at += size;
    if (end - begin == 1) {
      tokens[out++] = tokens[begin];
      continue;
    }
    if (const auto whole = pieces_.find(text); whole != pieces_.end()) {
      tokens[out++] = {whole->second, static_cast<uint32_t>(size)};
      continue;
    }
    part.assign(tokens.begin() + static_cast<ptrdiff_t>(begin), tokens.begin() + static_cast<ptrdiff_t>(end));
    part.size() <= kShortPiece ? merge_short(part, 0) : merge_long(part, 0);
    out = static_cast<size_t>(std::copy(part.begin(), part.end(), tokens.begin() + static_cast<ptrdiff_t>(out)) -
                              tokens.begin());
  }
  tokens.resize(out);
}

void BytePairModel::merge_long(std::vector<TokenSpan>& tokens, size_t first) const {
  struct Candidate {
    uint32_t rank, left;
    int32_t left_id, right_id;  // as they were: a candidate whose tokens have changed is void
    bool operator>(const Candidate& other) const { return rank != other.rank ? rank > other.rank : left > other.left; }
  };
  const auto count = static_cast<uint32_t>(tokens.size() - first);
  constexpr uint32_t kEnd = std::numeric_limits<uint32_t>::max();
  TokenSpan* at = tokens.data() + first;
  std::vector<uint32_t> next(count), previous(count);
  for (uint32_t i = 0; i < count; ++i) {
    next[i] = i + 1 < count ? i + 1 : kEnd;
    previous[i] = i > 0 ? i - 1 : kEnd;
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
  const auto consider = [&](uint32_t left) {
    if (left == kEnd || next[left] == kEnd) return;
    if (const auto* merge = find_merge(at[left].id, at[next[left]].id)) {
      candidates.push({merge->rank, left, at[left].id, at[next[left]].id});
    }
  };
  for (uint32_t i = 0; i + 1 < count; ++i) consider(i);
  while (!candidates.empty()) {
    const Candidate best = candidates.top();
    candidates.pop();
    const uint32_t left = best.left, right = next[left];
    if (at[left].id != best.left_id || at[left].num_bytes == 0 || right == kEnd || at[right].id != best.right_id)
      continue;
    at[left] = {find_merge(best.left_id, best.right_id)->id, at[left].num_bytes + at[right].num_bytes};
    at[right] = {-1, 0};
    next[left] = next[right];
    if (next[left] != kEnd) previous[next[left]] = left;
    consider(previous[left]);
    consider(left);
  }
  tokens.erase(std::remove_if(tokens.begin() + static_cast<ptrdiff_t>(first), tokens.end(),
                              [](const TokenSpan& token) { return token.num_bytes == 0; }),
               tokens.end());
}

}  // namespace troupe
