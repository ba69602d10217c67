#include "models/text/sentencepiece_tokenizer.h"

#include <sentencepiece_processor.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "models/text/token_decoder.h"
#include "models/text/unicode.h"

namespace troupe {
namespace {

using nlohmann::json;
constexpr std::string_view kSpaceMark = "\xE2\x96\x81";
constexpr int32_t kHighestId = 1 << 24;

class SentencePieceTokenizer : public Tokenizer {
 public:
  SentencePieceTokenizer(std::string_view model, SentencePieceOptions options) : options_(std::move(options)) {
    const auto status = processor_.LoadFromSerializedProto(model);
    require(status.ok(), "tokenizer.model: not a SentencePiece model (", status.ToString(), ")");
    const int size = processor_.GetPieceSize();
    tokens_.resize(static_cast<size_t>(size));
    special_.resize(tokens_.size());
    for (int id = 0; id < size; ++id) {
      tokens_[static_cast<size_t>(id)] = processor_.IdToPiece(id);
      if (processor_.IsControl(id) || processor_.IsUnknown(id)) {
        add({.id = id, .content = processor_.IdToPiece(id), .special = true});
      }
    }
    for (const AddedToken& token : options_.added_tokens) add(token);
    std::vector<std::string> pieces;
    require(processor_.Encode("a", &pieces).ok(), "tokenizer.model: cannot encode");
    has_prefix_ = !pieces.empty() && pieces[0].starts_with(kSpaceMark);
    json decoders = {{{"type", "Replace"}, {"pattern", {{"String", kSpaceMark}}}, {"content", " "}},
                     {{"type", "ByteFallback"}},
                     {{"type", "Fuse"}}};
    if (has_prefix_) decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    decoder_ = parse_token_decoder({{"type", "Sequence"}, {"decoders", decoders}});
    // A text that stands before another one takes the dummy space in its place (see encode_segment).
    guard_ = processor_.IdToPiece(processor_.unk_id());
    require(processor_.Encode(guard_, &pieces).ok(), "tokenizer.model: cannot encode");
    num_guard_pieces_ = pieces.size();
  }

  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens) const override {
    if (is_valid_utf8(text)) return run(text, add_special_tokens).ids;
    return run(repair_utf8(text), add_special_tokens).ids;
  }
  Encoding encode_with_spans(std::string_view text, bool add_special_tokens) const override {
    require(is_valid_utf8(text), "encode_with_spans: the text is not UTF-8");
    return run(text, add_special_tokens);
  }

  std::string decode(const std::vector<int32_t>& ids, bool skip_special_tokens) const override {
    std::vector<std::string> tokens;
    for (const int32_t id : ids) {
      if (id < 0 || id >= vocab_size() || (skip_special_tokens && is_special(id))) continue;
      tokens.push_back(tokens_[static_cast<size_t>(id)]);
    }
    decoder_->apply(tokens);
    std::string out;
    for (const auto& token : tokens) out += token;
    return out;
  }
  int64_t vocab_size() const override { return static_cast<int64_t>(tokens_.size()); }
  int32_t token_id(std::string_view token) const override {
    for (const AddedToken& added : options_.added_tokens) {
      if (added.content == token) return added.id;
    }
    const int id = processor_.PieceToId(token);
    return id >= 0 && id < processor_.GetPieceSize() && processor_.IdToPiece(id) == token ? id : -1;
  }
  bool is_special(int32_t id) const override {
    return id >= 0 && id < vocab_size() && special_[static_cast<size_t>(id)];
  }
  std::string token_bytes(int32_t id) const override {
    return id < 0 || id >= vocab_size() ? std::string() : decoder_->token_bytes(tokens_[static_cast<size_t>(id)]);
  }
  size_t num_leading_spaces_removed() const override { return has_prefix_ ? 1 : 0; }

 private:
  void add(const AddedToken& token) {
    require(token.id >= 0 && token.id < kHighestId, "the id ", token.id, " of the added token '", token.content,
            "' is not in [0, ", kHighestId, ")");
    const auto at = static_cast<size_t>(token.id);
    if (at >= tokens_.size()) {
      tokens_.resize(at + 1);
      special_.resize(at + 1);
    }
    tokens_[at] = token.content;
    special_[at] = token.special;
    finder_.add(token.content, token);
  }

  Encoding run(std::string_view text, bool add_special_tokens) const {
    Encoding out;
    if (add_special_tokens && options_.add_bos && processor_.bos_id() >= 0) give(processor_.bos_id(), {0, 0}, out);
    std::vector<AddedTokenPart> parts;
    finder_.split(text, parts);
    for (const auto& part : parts) {
      if (part.id >= 0) {
        give(part.id, part.span, out);
      } else {
        encode_segment(text.substr(part.span.begin, part.span.end - part.span.begin), part.span.begin, out);
      }
    }
    if (add_special_tokens && options_.add_eos && processor_.eos_id() >= 0) {
      give(processor_.eos_id(), {text.size(), text.size()}, out);
    }
    return out;
  }

  void encode_segment(std::string_view segment, size_t base, Encoding& out) const {
    const bool guarded = base > 0 && has_prefix_ && !options_.legacy;
    const std::string text = guarded ? guard_ + std::string(segment) : std::string(segment);
    const auto pieces = processor_.EncodeAsImmutableProto(text);
    const size_t skipped = guarded ? guard_.size() : 0;
    for (size_t i = guarded ? num_guard_pieces_ : 0; i < pieces.pieces_size(); ++i) {
      const auto piece = pieces.pieces(static_cast<int>(i));
      const size_t begin = std::max<size_t>(piece.begin(), skipped), end = std::max<size_t>(piece.end(), skipped);
      give(static_cast<int32_t>(piece.id()), {base + begin - skipped, base + end - skipped}, out);
    }
  }

  static void give(int32_t id, Span span, Encoding& out) {
    out.ids.push_back(id);
    out.spans.push_back(span);
  }

  SentencePieceOptions options_;
  sentencepiece::SentencePieceProcessor processor_;
  std::unique_ptr<TokenDecoder> decoder_;
  AddedTokenFinder finder_;
  std::vector<std::string> tokens_;  // by id
  std::vector<bool> special_;
  bool has_prefix_ = false;
  std::string guard_;
  size_t num_guard_pieces_ = 0;
};

}  // namespace

std::unique_ptr<Tokenizer> parse_sentencepiece(std::string_view model, SentencePieceOptions options) {
  return std::make_unique<SentencePieceTokenizer>(model, std::move(options));
}

}  // namespace troupe
