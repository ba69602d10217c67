// Pre-tokenizers. All of them are one of two kinds: cut each piece at matches, or rewrite the text under the pieces.
#include "models/text/pre_tokenizer.h"

#include <functional>

#include "base/error.h"
#include "models/text/byte_alphabet.h"
#include "models/text/normalizer.h"
#include "models/text/unicode.h"

namespace troupe {
namespace {

using nlohmann::json;

enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

Behavior parse_behavior(const std::string& name) {
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  fail("tokenizer.json: split behavior '", name,
       "' is not known (known: Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous)");
}

// Finds the delimiters of one piece: spans relative to it, in order.
using Finder = std::function<void(std::string_view piece, std::vector<Span>& matches)>;

// Cuts [0, size) at the matches. `invert` makes delimiters of what lies between the matches.
void cut(size_t size, const std::vector<Span>& matches, Behavior behavior, bool invert, size_t base,
         std::vector<Span>& out) {
  const auto give = [&](size_t begin, size_t end) {
    if (begin < end) out.push_back({base + begin, base + end});
  };
  size_t open = 0;  // where a merged piece began
  bool has_open = false, previous_delimiter = false;
  const auto part = [&](size_t begin, size_t end, bool is_match) {
    const bool delimiter = is_match != invert;
    if (begin == end) {  // a cut without characters of its own
      if (is_match && behavior == Behavior::kContiguous) previous_delimiter = delimiter;
      return;
    }
    const auto start_anew = [&] {  // the piece so far ends here
      if (has_open) give(open, begin);
      open = begin;
      has_open = true;
    };
    switch (behavior) {
      case Behavior::kRemoved:
        if (!delimiter) give(begin, end);
        break;
      case Behavior::kIsolated:
        give(begin, end);
        break;
      case Behavior::kMergedWithPrevious:  // a delimiter joins the text before it, unless that is a delimiter too
        if (delimiter && has_open && !previous_delimiter) {
          give(open, end);
          has_open = false;
        } else {
          start_anew();
        }
        break;
      case Behavior::kMergedWithNext:  // a delimiter joins the text after it, unless that is a delimiter too
        if (!delimiter && has_open && previous_delimiter) {
          give(open, end);
          has_open = false;
        } else {
          start_anew();
        }
        break;
      case Behavior::kContiguous:
        if (!has_open || delimiter != previous_delimiter) {
          start_anew();
        }
        break;
    }
    previous_delimiter = delimiter;
  };
  size_t at = 0;
  for (const Span match : matches) {
    part(at, match.begin, false);
    part(match.begin, match.end, true);
    at = match.end;
  }
  part(at, size, false);
  if (has_open) give(open, size);
}

class Cutter : public PreTokenizer {
 public:
  Cutter(Finder finder, Behavior behavior, bool invert = false)
      : finder_(std::move(finder)), behavior_(behavior), invert_(invert) {}
  void apply(PieceList& list) const override {
    std::vector<Span> out, matches;
    out.reserve(list.pieces.size() * 2 + list.text.text.size() / 4);
    const std::string_view text = list.text.text;
    for (const Span piece : list.pieces) {
      matches.clear();
      finder_(text.substr(piece.begin, piece.end - piece.begin), matches);
      cut(piece.end - piece.begin, matches, behavior_, invert_, piece.begin, out);
    }
    list.pieces = std::move(out);
  }

 private:
  Finder finder_;
  Behavior behavior_;
  bool invert_;
};

// A delimiter is each character for which the predicate holds.
Finder characters(bool (*predicate)(char32_t)) {
  return [predicate](std::string_view piece, std::vector<Span>& matches) {
    for (size_t at = 0; at < piece.size();) {
      const size_t begin = at;
      if (predicate(next_code_point(piece, at))) matches.push_back({begin, at});
    }
  };
}

Finder expression(Regex regex) {
  auto shared = std::make_shared<Regex>(std::move(regex));
  return [shared](std::string_view piece, std::vector<Span>& matches) {
    shared->find_all(piece, matches, /*keep_empty=*/true);
  };
}

// Rewrites the text of each piece with `change(rewriter, piece, index)`; pieces keep their order.
template <class F>
void rewrite_pieces(PieceList& list, F change) {
  TextRewriter out(list.text, list.track);
  std::vector<Span> pieces;
  pieces.reserve(list.pieces.size());
  for (size_t i = 0; i < list.pieces.size(); ++i) {
    const size_t begin = out.size();
    change(out, list.pieces[i], i);
    pieces.push_back({begin, out.size()});
  }
  list.text = out.take();
  list.pieces = std::move(pieces);
}

class ByteLevel : public PreTokenizer {
 public:
  explicit ByteLevel(const json& description) : add_prefix_space_(description.value("add_prefix_space", true)) {
    if (description.value("use_regex", true)) {
      splitter_ = std::make_unique<Cutter>(
          expression(Regex(
              pcre_pattern("'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"))),
          Behavior::kIsolated);
    }
  }
  /// With `map`, bytes are written in the byte alphabet; the last step leaves that to the model's tables.
  void set_map(bool map) { map_ = map; }
  void apply(PieceList& list) const override {
    if (add_prefix_space_) {
      bool needed = false;
      for (const Span piece : list.pieces) needed |= list.text.text[piece.begin] != ' ';
      if (needed) {
        rewrite_pieces(list, [&](TextRewriter& out, Span piece, size_t) {
          if (list.text.text[piece.begin] != ' ')
            out.put(" ", piece.begin, piece.begin + utf8_width(list.text.text[piece.begin]));
          out.keep(piece.begin, piece.end);
        });
      }
    }
    if (splitter_) splitter_->apply(list);
    if (map_) {
      rewrite_pieces(list, [&](TextRewriter& out, Span piece, size_t) {
        for (size_t at = piece.begin; at < piece.end; ++at) {
          out.put(byte_alphabet()[static_cast<unsigned char>(list.text.text[at])], at, at + 1);
        }
      });
    }
  }

 private:
  bool add_prefix_space_;
  bool map_ = true;
  std::unique_ptr<Cutter> splitter_;
};

class Metaspace : public PreTokenizer {
 public:
  explicit Metaspace(const json& description) : mark_(description.value("replacement", std::string("\u2581"))) {
    const bool legacy_prefix = description.value("add_prefix_space", true);
    scheme_ = description.value("prepend_scheme", std::string(legacy_prefix ? "always" : "never"));
    require(scheme_ == "always" || scheme_ == "first" || scheme_ == "never",
            "tokenizer.json: Metaspace prepend_scheme '", scheme_, "' is not known (known: always, first, never)");
    if (description.value("split", true)) {
      splitter_ = std::make_unique<Cutter>(expression(parse_pattern({{"String", mark_}})), Behavior::kMergedWithNext);
    }
  }
  void apply(PieceList& list) const override {
    rewrite_pieces(list, [&](TextRewriter& out, Span piece, size_t index) {
      const std::string_view text = std::string_view(list.text.text).substr(0, piece.end);
      const bool wanted = scheme_ == "always" || (scheme_ == "first" && index == 0 && list.at_start);
      const bool marked = text.substr(piece.begin).starts_with(mark_) || text[piece.begin] == ' ';
      if (wanted && !marked) out.put(mark_, piece.begin, piece.begin + utf8_width(text[piece.begin]));
      size_t begin = piece.begin;
      for (size_t at = text.find(' ', begin); at != text.npos; at = text.find(' ', begin)) {
        out.keep(begin, at);
        out.put(mark_, at, at + 1);
        begin = at + 1;
      }
      out.keep(begin, piece.end);
    });
    if (splitter_) splitter_->apply(list);
  }

 private:
  std::string mark_, scheme_;
  std::unique_ptr<Cutter> splitter_;
};

class FixedLength : public PreTokenizer {
 public:
  explicit FixedLength(size_t length) : length_(length) { require(length > 0, "tokenizer.json: FixedLength of 0"); }
  void apply(PieceList& list) const override {
    std::vector<Span> out;
    for (const Span piece : list.pieces) {
      size_t begin = piece.begin, count = 0;
      for (size_t at = piece.begin; at < piece.end;) {
        at += utf8_width(list.text.text[at]);
        if (++count == length_ || at >= piece.end) {
          out.push_back({begin, at});
          begin = at;
          count = 0;
        }
      }
    }
    list.pieces = std::move(out);
  }

 private:
  size_t length_;
};

void parse_into(const json& description, std::vector<std::unique_ptr<PreTokenizer>>& steps) {
  const auto type = description.at("type").get<std::string>();
  const auto add = [&](Finder finder, Behavior behavior, bool invert = false) {
    steps.push_back(std::make_unique<Cutter>(std::move(finder), behavior, invert));
  };
  if (type == "Sequence") {
    for (const auto& item : description.at("pretokenizers")) parse_into(item, steps);
  } else if (type == "ByteLevel") {
    steps.push_back(std::make_unique<ByteLevel>(description));
  } else if (type == "Metaspace") {
    steps.push_back(std::make_unique<Metaspace>(description));
  } else if (type == "Split") {
    add(expression(parse_pattern(description.at("pattern"))),
        parse_behavior(description.at("behavior").get<std::string>()), description.value("invert", false));
  } else if (type == "Digits") {
    add(characters(is_numeric),
        description.value("individual_digits", false) ? Behavior::kIsolated : Behavior::kContiguous);
  } else if (type == "Punctuation") {
    add(characters(is_punctuation), parse_behavior(description.value("behavior", std::string("Isolated"))));
  } else if (type == "Whitespace") {
    // Rust's \w, which holds the two joiners.
    constexpr std::string_view word = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200C}\\x{200D}";
    add(expression(Regex(concat("[", word, "]+|[^", word, "\\p{White_Space}]+"))), Behavior::kRemoved,
        /*invert=*/true);
  } else if (type == "WhitespaceSplit") {
    add(characters(is_white_space), Behavior::kRemoved);
  } else if (type == "BertPreTokenizer") {
    add(characters(is_white_space), Behavior::kRemoved);
    add(characters(is_punctuation), Behavior::kIsolated);
  } else if (type == "CharDelimiterSplit") {
    add(expression(parse_pattern({{"String", description.at("delimiter").get<std::string>()}})), Behavior::kRemoved);
  } else if (type == "FixedLength") {
    steps.push_back(std::make_unique<FixedLength>(description.value("length", size_t{5})));
  } else {
    fail("tokenizer.json: pre-tokenizer '", type,
         "' is not supported (known: ByteLevel, Metaspace, Split, Digits, Punctuation, Whitespace, WhitespaceSplit, "
         "BertPreTokenizer, CharDelimiterSplit, FixedLength, Sequence)");
  }
}

}  // namespace

PreTokenizerChain parse_pre_tokenizer(const json& description) {
  PreTokenizerChain chain;
  if (description.is_null()) return chain;
  parse_into(description, chain.steps);
  if (!chain.steps.empty()) {
    if (auto* last = dynamic_cast<ByteLevel*>(chain.steps.back().get())) {
      last->set_map(false);
      chain.byte_level = true;
    }
  }
  return chain;
}

}  // namespace troupe
