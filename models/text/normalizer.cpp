// Normalizers. Each rewrites the text piece by piece, so that the alignment with the original stays as fine as it can
// be.
#include "models/text/normalizer.h"

#include <algorithm>

#include "base/error.h"
#include "models/text/byte_alphabet.h"
#include "models/text/legacy_normalizers.h"
#include "models/text/unicode.h"

namespace troupe {
namespace {

using nlohmann::json;

class UnicodeForm : public Normalizer {
 public:
  explicit UnicodeForm(NormalForm form) : form_(form) {}
  void apply(AlignedText& text, bool track) const override {
    if (std::all_of(text.text.begin(), text.text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; }))
      return;
    TextRewriter out(text, track);
    for (size_t begin = 0; begin < text.text.size();) {
      size_t end = begin;
      bool ascii = next_code_point(text.text, end) < 0x80;
      while (end < text.text.size()) {
        size_t next = end;
        const char32_t c = next_code_point(text.text, next);
        if (is_normalization_boundary(c)) break;
        ascii = false;
        end = next;
      }
      if (ascii) {
        out.keep(begin, end);
      } else {
        out.put(normalize_unicode(std::string_view(text.text).substr(begin, end - begin), form_), begin, end);
      }
      begin = end;
    }
    text = out.take();
  }

 private:
  NormalForm form_;
};

class Lowercase : public Normalizer {
 public:
  void apply(AlignedText& text, bool track) const override {
    TextRewriter out(text, track);
    std::string lower;
    for (size_t at = 0; at < text.text.size();) {
      const size_t begin = at;
      lower.clear();
      append_lower(lower, next_code_point(text.text, at));
      out.put(lower, begin, at);
    }
    text = out.take();
  }
};

class Prepend : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  void apply(AlignedText& text, bool track) const override {
    if (text.text.empty()) return;
    TextRewriter out(text, track);
    out.put(prefix_, 0, utf8_width(text.text[0]));
    out.keep(0, text.text.size());
    text = out.take();
  }

 private:
  std::string prefix_;
};

class Replace : public Normalizer {
 public:
  explicit Replace(const json& description)
      : pattern_(parse_pattern(description.at("pattern"))), content_(description.at("content").get<std::string>()) {}
  void apply(AlignedText& text, bool track) const override {
    std::vector<Span> matches;
    pattern_.find_all(text.text, matches);
    if (matches.empty()) return;
    TextRewriter out(text, track);
    size_t at = 0;
    for (const Span match : matches) {
      out.keep(at, match.begin);
      out.put(content_, match.begin, match.end);
      at = match.end;
    }
    out.keep(at, text.text.size());
    text = out.take();
  }

 private:
  Regex pattern_;
  std::string content_;
};

class Strip : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  void apply(AlignedText& text, bool track) const override {
    size_t begin = text.text.size(), end = 0;
    for (size_t at = 0; at < text.text.size();) {
      const size_t start = at;
      if (is_white_space(next_code_point(text.text, at))) continue;
      begin = std::min(begin, start);
      end = at;
    }
    if (!left_) begin = 0;
    if (!right_) end = text.text.size();
    TextRewriter out(text, track);
    if (begin < end) out.keep(begin, end);
    text = out.take();
  }

 private:
  bool left_, right_;
};

class StripAccents : public Normalizer {
 public:
  void apply(AlignedText& text, bool track) const override {
    TextRewriter out(text, track);
    for (size_t at = 0; at < text.text.size();) {
      const size_t begin = at;
      if (is_mark(next_code_point(text.text, at))) continue;
      out.keep(begin, at);
    }
    text = out.take();
  }
};

class ByteLevelNormalizer : public Normalizer {
 public:
  void apply(AlignedText& text, bool track) const override {
    TextRewriter out(text, track);
    for (size_t at = 0; at < text.text.size(); ++at) {
      out.put(byte_alphabet()[static_cast<unsigned char>(text.text[at])], at, at + 1);
    }
    text = out.take();
  }
};

class NormalizerSequence : public Normalizer {
 public:
  explicit NormalizerSequence(const json& list) {
    for (const auto& item : list) {
      if (auto step = parse_normalizer(item)) steps_.push_back(std::move(step));
    }
  }
  void apply(AlignedText& text, bool track) const override {
    for (const auto& step : steps_) step->apply(text, track);
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> steps_;
};

}  // namespace

Regex parse_pattern(const json& description) {
  if (description.contains("String")) {
    // Quoted: \Q...\E, with a \E inside the text closed and reopened.
    std::string quoted = "\\Q";
    const auto literal = description.at("String").get<std::string>();
    for (size_t at = 0; at < literal.size(); ++at) {
      if (literal.compare(at, 2, "\\E") == 0) {
        quoted += "\\E\\\\E\\Q";
        ++at;
      } else {
        quoted += literal[at];
      }
    }
    return Regex(quoted + "\\E");
  }
  RegexOptions options;
  options.multi_line = true;  // as in Oniguruma's Ruby syntax
  return Regex(pcre_pattern(description.at("Regex").get<std::string>()), options);
}

std::unique_ptr<Normalizer> parse_normalizer(const json& description) {
  if (description.is_null()) return nullptr;
  const auto type = description.at("type").get<std::string>();
  if (type == "NFC") return std::make_unique<UnicodeForm>(NormalForm::kNfc);
  if (type == "NFD") return std::make_unique<UnicodeForm>(NormalForm::kNfd);
  if (type == "NFKC") return std::make_unique<UnicodeForm>(NormalForm::kNfkc);
  if (type == "NFKD") return std::make_unique<UnicodeForm>(NormalForm::kNfkd);
  if (type == "Lowercase") return std::make_unique<Lowercase>();
  if (type == "Prepend") return std::make_unique<Prepend>(description.at("prepend").get<std::string>());
  if (type == "Replace") return std::make_unique<Replace>(description);
  if (type == "Strip")
    return std::make_unique<Strip>(description.value("strip_left", true), description.value("strip_right", true));
  if (type == "StripAccents") return std::make_unique<StripAccents>();
  if (type == "ByteLevel") return std::make_unique<ByteLevelNormalizer>();
  if (type == "BertNormalizer") return make_bert_normalizer(description);
  if (type == "Nmt") return make_nmt_normalizer();
  if (type == "Precompiled") {
    // Some files hold an empty table, which does nothing.
    const auto& table = description.at("precompiled_charsmap");
    return table.is_null() || table == "" ? nullptr : make_precompiled_normalizer(description);
  }
  if (type == "Sequence") return std::make_unique<NormalizerSequence>(description.at("normalizers"));
  fail("tokenizer.json: normalizer '", type,
       "' is not supported (known: NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Strip, StripAccents, ByteLevel, "
       "BertNormalizer, Nmt, Precompiled, Sequence)");
}

}  // namespace troupe
