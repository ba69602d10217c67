#include "models/text/legacy_normalizers.h"

#include <cstring>

#include "base/error.h"
#include "models/text/base64.h"
#include "models/text/unicode.h"

namespace troupe {
namespace {

using nlohmann::json;

bool is_chinese(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
         (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

/// Calls `change(out, character, begin, end)` for each character of the text.
template <class F>
void rewrite_characters(AlignedText& text, bool track, F change) {
  TextRewriter out(text, track);
  for (size_t at = 0; at < text.text.size();) {
    const size_t begin = at;
    const char32_t c = next_code_point(text.text, at);
    change(out, c, begin, at);
  }
  text = out.take();
}

class BertNormalizer : public Normalizer {
 public:
  explicit BertNormalizer(const json& description)
      : clean_text_(description.value("clean_text", true)),
        space_chinese_(description.value("handle_chinese_chars", true)),
        lowercase_(description.value("lowercase", true)) {
    const auto accents = description.find("strip_accents");
    strip_accents_ = accents == description.end() || accents->is_null() ? lowercase_ : accents->get<bool>();
    if (strip_accents_) decompose_ = parse_normalizer({{"type", "NFD"}});
    if (lowercase_) lower_ = parse_normalizer({{"type", "Lowercase"}});
  }

  void apply(AlignedText& text, bool track) const override {
    if (clean_text_) {
      rewrite_characters(text, track, [](TextRewriter& out, char32_t c, size_t begin, size_t end) {
        const bool is_control = is_other(c) && c != '\t' && c != '\n' && c != '\r';
        if (c == 0xFFFD || is_control) return;
        is_white_space(c) ? out.put(" ", begin, end) : out.keep(begin, end);
      });
    }
    if (space_chinese_) {
      rewrite_characters(text, track, [](TextRewriter& out, char32_t c, size_t begin, size_t end) {
        if (is_chinese(c)) out.put(" ", begin, end);
        out.keep(begin, end);
        if (is_chinese(c)) out.put(" ", begin, end);
      });
    }
    if (strip_accents_) {
      decompose_->apply(text, track);
      rewrite_characters(text, track, [](TextRewriter& out, char32_t c, size_t begin, size_t end) {
        if (!is_nonspacing_mark(c)) out.keep(begin, end);
      });
    }
    if (lowercase_) lower_->apply(text, track);
  }

 private:
  bool clean_text_, space_chinese_, lowercase_, strip_accents_ = false;
  std::unique_ptr<Normalizer> decompose_, lower_;
};

class Nmt : public Normalizer {
 public:
  void apply(AlignedText& text, bool track) const override {
    rewrite_characters(text, track, [](TextRewriter& out, char32_t c, size_t begin, size_t end) {
      const bool dropped =
          (c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F;
      const bool is_space = c == 9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 || (c >= 0x200B && c <= 0x200F) ||
                            c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
      if (dropped) return;
      is_space ? out.put(" ", begin, end) : out.keep(begin, end);
    });
  }
};

/// A table of replacements: a double-array trie (Aoe 1989; the layout of Darts-clone) from text to a place in a list of
/// strings.
class CharactersMap {
 public:
  explicit CharactersMap(const std::string& base64) {
    std::string blob;
    require(decode_base64(base64, blob), "tokenizer.json: precompiled_charsmap is no base64");
    uint32_t num_bytes = 0;
    require(blob.size() >= sizeof(num_bytes), "tokenizer.json: precompiled_charsmap is truncated");
    std::memcpy(&num_bytes, blob.data(), sizeof(num_bytes));
    require(num_bytes % 4 == 0 && num_bytes <= blob.size() - 4 && num_bytes > 0,
            "tokenizer.json: precompiled_charsmap: a table of ", num_bytes, " bytes in ", blob.size());
    units_.resize(num_bytes / 4);
    std::memcpy(units_.data(), blob.data() + 4, num_bytes);
    strings_ = blob.substr(4 + num_bytes);
  }

  /// The replacement of the shortest entry that `text` begins with (as the reference has it), or none.
  const char* find(std::string_view text) const {
    size_t node = offset(units_[0]);
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte == 0) return nullptr;
      node ^= byte;
      if (node >= units_.size() || (units_[node] & 0x800000FFu) != byte) return nullptr;
      const uint32_t unit = units_[node];
      node ^= offset(unit);
      if (node >= units_.size()) return nullptr;
      if ((unit >> 8 & 1) == 0) continue;
      const uint32_t place = units_[node] & 0x7FFFFFFFu;
      return place < strings_.size() ? strings_.c_str() + place : nullptr;
    }
    return nullptr;
  }

 private:
  static size_t offset(uint32_t unit) { return static_cast<size_t>(unit >> 10) << ((unit & 0x200u) >> 6); }
  std::vector<uint32_t> units_;
  std::string strings_;  // parted by zeros
};

class Precompiled : public Normalizer {
 public:
  explicit Precompiled(const json& description) : map_(description.at("precompiled_charsmap").get<std::string>()) {}

  void apply(AlignedText& text, bool track) const override {
    constexpr size_t kLongestCluster = 6;  // bytes; longer ones are looked up character by character
    TextRewriter out(text, track);
    const std::string_view view = text.text;
    for (size_t begin = 0; begin < view.size();) {
      const size_t end = next_grapheme(view, begin);
      const char* found = end - begin < kLongestCluster ? map_.find(view.substr(begin, end - begin)) : nullptr;
      if (found != nullptr) {
        out.put(found, begin, end);
      } else {
        for (size_t at = begin; at < end;) {
          const size_t next = at + utf8_width(view[at]);
          const char* single = map_.find(view.substr(at, next - at));
          single != nullptr ? out.put(single, at, next) : out.keep(at, next);
          at = next;
        }
      }
      begin = end;
    }
    text = out.take();
  }

 private:
  CharactersMap map_;
};

}  // namespace

std::unique_ptr<Normalizer> make_bert_normalizer(const json& description) {
  return std::make_unique<BertNormalizer>(description);
}
std::unique_ptr<Normalizer> make_nmt_normalizer() { return std::make_unique<Nmt>(); }
std::unique_ptr<Normalizer> make_precompiled_normalizer(const json& description) {
  return std::make_unique<Precompiled>(description);
}

}  // namespace troupe
