// Decoders. They follow the reference in what they do to byte tokens that make no character, so that texts are equal.
#include "models/text/token_decoder.h"

#include "base/error.h"
#include "models/text/byte_alphabet.h"
#include "models/text/normalizer.h"
#include "models/text/unicode.h"

namespace troupe {
namespace {

using nlohmann::json;

std::string join(const std::vector<std::string>& tokens) {
  std::string out;
  for (const auto& token : tokens) out += token;
  return out;
}

class ByteLevelDecoder : public TokenDecoder {
 public:
  void apply(std::vector<std::string>& tokens) const override {
    std::string bytes;
    for (const auto& token : tokens) bytes += token_bytes(token);
    tokens.assign(1, repair_utf8(bytes));
  }
  std::string token_bytes(std::string token) const override {
    auto bytes = from_byte_alphabet(token);
    return bytes ? std::move(*bytes) : token;  // added tokens may hold characters of their own
  }
};

class ByteFallback : public TokenDecoder {
 public:
  void apply(std::vector<std::string>& tokens) const override {
    std::vector<std::string> out;
    std::string bytes;
    const auto flush = [&] {
      if (bytes.empty()) return;
      if (is_valid_utf8(bytes)) {
        out.push_back(bytes);
      } else {
        out.insert(out.end(), bytes.size(), "\xEF\xBF\xBD");
      }
      bytes.clear();
    };
    for (auto& token : tokens) {
      if (const int byte = byte_of(token); byte >= 0) {
        bytes += static_cast<char>(byte);
      } else {
        flush();
        out.push_back(std::move(token));
      }
    }
    flush();
    tokens = std::move(out);
  }
  std::string token_bytes(std::string token) const override {
    const int byte = byte_of(token);
    return byte >= 0 ? std::string(1, static_cast<char>(byte)) : token;
  }

 private:
  static int byte_of(std::string_view token) {
    const auto digit = [](char c) {
      return c >= '0' && c <= '9'   ? c - '0'
             : c >= 'A' && c <= 'F' ? c - 'A' + 10
             : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                    : -1;
    };
    if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
    const int high = digit(token[3]), low = digit(token[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
  }
};

class ReplaceDecoder : public TokenDecoder {
 public:
  explicit ReplaceDecoder(const json& description)
      : pattern_(parse_pattern(description.at("pattern"))), content_(description.at("content").get<std::string>()) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (auto& token : tokens) token = token_bytes(std::move(token));
  }
  std::string token_bytes(std::string token) const override {
    if (!is_valid_utf8(token)) return token;  // a byte token
    std::vector<Span> matches;
    pattern_.find_all(token, matches);
    std::string out;
    size_t at = 0;
    for (const Span match : matches) {
      out.append(token, at, match.begin - at).append(content_);
      at = match.end;
    }
    return out.append(token, at);
  }

 private:
  Regex pattern_;
  std::string content_;
};

class StripDecoder : public TokenDecoder {
 public:
  // `whole_text`: stands behind a Fuse, so that it sees one token, the text.
  StripDecoder(const json& description, bool whole_text)
      : content_(description.value("content", std::string(" "))),
        start_(description.value("start", size_t{0})),
        stop_(description.value("stop", size_t{0})),
        whole_text_(whole_text) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (auto& token : tokens) strip(token);
  }
  std::string token_bytes(std::string token) const override {
    if (!whole_text_) strip(token);
    return token;
  }
  size_t num_leading_spaces_removed() const override { return whole_text_ && content_ == " " ? start_ : 0; }

 private:
  void strip(std::string& token) const {
    size_t begin = 0, end = token.size();
    for (size_t i = 0; i < start_ && std::string_view(token).substr(begin).starts_with(content_); ++i)
      begin += content_.size();
    for (size_t i = 0;
         i < stop_ && end >= begin + content_.size() && std::string_view(token).substr(0, end).ends_with(content_);
         ++i) {
      end -= content_.size();
    }
    token = token.substr(begin, end - begin);
  }
  std::string content_;
  size_t start_, stop_;
  bool whole_text_;
};

class Fuse : public TokenDecoder {
 public:
  void apply(std::vector<std::string>& tokens) const override { tokens.assign(1, join(tokens)); }
  std::string token_bytes(std::string token) const override { return token; }
};

class MetaspaceDecoder : public TokenDecoder {
 public:
  explicit MetaspaceDecoder(const json& description) : mark_(description.value("replacement", std::string("\u2581"))) {
    const bool legacy_prefix = description.value("add_prefix_space", true);
    strips_first_ = description.value("prepend_scheme", std::string(legacy_prefix ? "always" : "never")) != "never";
  }
  void apply(std::vector<std::string>& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = i == 0 ? first_token_bytes(std::move(tokens[i])) : token_bytes(std::move(tokens[i]));
  }
  std::string token_bytes(std::string token) const override { return replaced(std::move(token), " "); }
  /// As in the reference, every mark of the first token goes, not only the one at its beginning.
  std::string first_token_bytes(std::string token) const override {
    return replaced(std::move(token), strips_first_ ? "" : " ");
  }

 private:
  std::string replaced(std::string token, std::string_view with) const {
    for (size_t at = token.find(mark_); at != token.npos; at = token.find(mark_, at + with.size()))
      token.replace(at, mark_.size(), with);
    return token;
  }
  std::string mark_;
  bool strips_first_;
};

class SuffixDecoder : public TokenDecoder {
 public:
  explicit SuffixDecoder(std::string suffix) : suffix_(std::move(suffix)) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = replaced(tokens[i], i + 1 == tokens.size() ? "" : " ");
  }
  std::string token_bytes(std::string token) const override { return replaced(token, " "); }

 private:
  std::string replaced(std::string token, const char* with) const {
    if (suffix_.empty()) return token;
    for (size_t at = token.find(suffix_); at != token.npos; at = token.find(suffix_, at + 1))
      token.replace(at, suffix_.size(), with);
    return token;
  }
  std::string suffix_;
};

class WordPieceDecoder : public TokenDecoder {
 public:
  explicit WordPieceDecoder(const json& description)
      : prefix_(description.value("prefix", std::string("##"))), cleanup_(description.value("cleanup", true)) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = i == 0 ? cleaned(tokens[i]) : token_bytes(tokens[i]);
  }
  std::string token_bytes(std::string token) const override {
    const bool continues = !prefix_.empty() && token.starts_with(prefix_);
    return cleaned(continues ? token.substr(prefix_.size()) : " " + token);
  }
  size_t num_leading_spaces_removed() const override { return 1; }

 private:
  std::string cleaned(std::string token) const {
    if (!cleanup_) return token;
    static constexpr std::pair<std::string_view, std::string_view> kReplacements[] = {
        {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
        {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    for (const auto& [from, to] : kReplacements) {
      for (size_t at = token.find(from); at != token.npos; at = token.find(from, at + to.size())) {
        token.replace(at, from.size(), to);
      }
    }
    return token;
  }
  std::string prefix_;
  bool cleanup_;
};

class DecoderSequence : public TokenDecoder {
 public:
  explicit DecoderSequence(const json& list);
  void apply(std::vector<std::string>& tokens) const override {
    for (const auto& step : steps_) step->apply(tokens);
  }
  std::string token_bytes(std::string token) const override {
    for (const auto& step : steps_) token = step->token_bytes(std::move(token));
    return token;
  }
  std::string first_token_bytes(std::string token) const override {
    for (const auto& step : steps_) token = step->first_token_bytes(std::move(token));
    return token;
  }
  size_t num_leading_spaces_removed() const override {
    size_t count = 0;
    for (const auto& step : steps_) count += step->num_leading_spaces_removed();
    return count;
  }

 private:
  std::vector<std::unique_ptr<TokenDecoder>> steps_;
};

std::unique_ptr<TokenDecoder> parse_step(const json& description, bool whole_text) {
  const auto type = description.at("type").get<std::string>();
  if (type == "ByteLevel") return std::make_unique<ByteLevelDecoder>();
  if (type == "ByteFallback") return std::make_unique<ByteFallback>();
  if (type == "Replace") return std::make_unique<ReplaceDecoder>(description);
  if (type == "Strip") return std::make_unique<StripDecoder>(description, whole_text);
  if (type == "Fuse") return std::make_unique<Fuse>();
  if (type == "Metaspace") return std::make_unique<MetaspaceDecoder>(description);
  if (type == "BPEDecoder") return std::make_unique<SuffixDecoder>(description.value("suffix", std::string("</w>")));
  if (type == "WordPiece") return std::make_unique<WordPieceDecoder>(description);
  if (type == "Sequence") return std::make_unique<DecoderSequence>(description.at("decoders"));
  fail("tokenizer.json: decoder '", type,
       "' is not supported (known: ByteLevel, ByteFallback, Replace, Strip, Fuse, Metaspace, BPEDecoder, WordPiece, "
       "Sequence)");
}

DecoderSequence::DecoderSequence(const json& list) {
  bool whole_text = false;
  for (const auto& item : list) {
    steps_.push_back(parse_step(item, whole_text));
    whole_text |= item.value("type", std::string()) == "Fuse";
  }
}

}  // namespace

std::unique_ptr<TokenDecoder> parse_token_decoder(const json& description) {
  return description.is_null() ? nullptr : parse_step(description, false);
}

}  // namespace troupe
