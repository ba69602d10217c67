// Which tokens of a packed row see which: documents without padding, and completions that share one prompt.
//
//   [ prompt A | completion A0 | completion A1 | prompt B | completion B0 ]        T tokens in one row
//     segment 0   segment 1       segment 2       segment 3  segment 4
//                 parent 0        parent 0                   parent 3
//
// A token sees itself, what stands before it in its own segment, and the whole of its segment's ancestors. A prompt
// that many samples of a group share is therefore computed once; the gradient equals that of separate rows.
#pragma once

#include <cstdint>
#include <vector>

namespace troupe {

struct Segment {
  int32_t begin = 0;    // first token in the row
  int32_t length = 0;   // > 0
  int32_t parent = -1;  // index of an earlier segment, or -1; a parent has no parent itself (one level)
};

struct PackedLayout {
  std::vector<Segment> segments;  // in row order, without gaps
  int32_t num_tokens = 0;

  /// Position of every token: counts from 0 in a root segment, from the parent's length in a child.
  std::vector<int32_t> positions() const;
  /// For every token the tokens of its document: a root's own length and that of its longest child.
  std::vector<int32_t> document_lengths() const;
  /// Throws Error on gaps, overlaps, bad parents or a wrong token count.
  void check() const;
};

}  // namespace troupe
