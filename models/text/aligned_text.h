// A text on its way through a tokenizer, which may remember where in the user's text each of its bytes comes from.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/text/regex.h"

namespace troupe {

/// `begins` and `ends` are empty (the text is the original from byte `base` on) or hold, for each byte, the range of
/// original bytes that it stands for.
struct AlignedText {
  std::string text;
  size_t base = 0;
  std::vector<uint32_t> begins, ends;

  bool aligned() const { return !begins.empty(); }
  /// Range in the original of the bytes [begin, end) here.
  Span original(size_t begin, size_t end) const {
    if (begins.empty()) return {base + begin, base + end};
    if (begin >= begins.size()) return ends.empty() ? Span{base, base} : Span{ends.back(), ends.back()};
    if (end <= begin) return {begins[begin], begins[begin]};
    return {begins[begin], ends[end - 1]};
  }
  AlignedText slice(size_t begin, size_t end) const {
    AlignedText out{text.substr(begin, end - begin), base + begin, {}, {}};
    if (aligned()) {
      out.begins.assign(begins.begin() + static_cast<ptrdiff_t>(begin), begins.begin() + static_cast<ptrdiff_t>(end));
      out.ends.assign(ends.begin() + static_cast<ptrdiff_t>(begin), ends.begin() + static_cast<ptrdiff_t>(end));
    }
    return out;
  }
};

/// Builds a changed text from a source, in order. Alignment costs eight bytes a byte, so it is kept only on request.
class TextRewriter {
 public:
  TextRewriter(const AlignedText& source, bool track) : source_(source), track_(track || source.aligned()) {
    out_.base = source.base;
    out_.text.reserve(source.text.size() + source.text.size() / 4 + 8);
  }
  size_t size() const { return out_.text.size(); }
  /// Copies the source's bytes [begin, end).
  void keep(size_t begin, size_t end) {
    if (track_) {
      for (size_t i = begin; i < end; ++i) mark(source_.original(i, i + 1), 1);
    }
    out_.text.append(source_.text, begin, end - begin);
  }
  /// `replacement` stands for the source's bytes [begin, end).
  void put(std::string_view replacement, size_t begin, size_t end) {
    if (track_) mark(source_.original(begin, end), replacement.size());
    out_.text.append(replacement);
  }
  AlignedText take() { return std::move(out_); }

 private:
  void mark(Span span, size_t count) {
    out_.begins.insert(out_.begins.end(), count, static_cast<uint32_t>(span.begin));
    out_.ends.insert(out_.ends.end(), count, static_cast<uint32_t>(span.end));
  }
  const AlignedText& source_;
  bool track_;
  AlignedText out_;
};

}  // namespace troupe
