// The tokenizer of a tokenizer.json: added tokens, normalizer, pre-tokenizer, model, post-processor, decoder, one
// after the other. Truncation and padding settings in the file are left alone: lengths are the caller's business.
#include <algorithm>
#include <map>

#include "base/error.h"
#include "models/text/added_tokens.h"
#include "models/text/normalizer.h"
#include "models/text/pre_tokenizer.h"
#include "models/text/token_decoder.h"
#include "models/text/token_model.h"
#include "models/text/tokenizer.h"
#include "models/text/unicode.h"

namespace troupe {
namespace {

using nlohmann::json;
constexpr int32_t kHighestId = 1 << 24;

// Ids before and after the text.
struct PostProcessor {
  std::vector<int32_t> before, after;
};

int32_t checked_id(const json& value, const char* what) {
  require(value.is_number_integer() && value.get<int64_t>() >= 0 && value.get<int64_t>() < kHighestId,
          "tokenizer.json: the id of ", what, " is not an integer in [0, ", kHighestId, ")");
  return value.get<int32_t>();
}

void parse_template(const json& description, PostProcessor& out) {
  PostProcessor found;
  bool behind = false;
  for (const auto& item : description.at("single")) {
    if (item.contains("Sequence")) {
      require(!behind, "tokenizer.json: TemplateProcessing with the sequence twice in 'single' is not supported");
      behind = true;
      continue;
    }
    const auto name = item.at("SpecialToken").at("id").get<std::string>();
    const auto& tokens = description.at("special_tokens");
    require(tokens.contains(name), "tokenizer.json: TemplateProcessing names '", name,
            "', which is not in its special_tokens");
    for (const auto& id : tokens.at(name).at("ids"))
      (behind ? found.after : found.before).push_back(checked_id(id, name.c_str()));
  }
  // Of several post-processors in a sequence, later ones stand outside.
  out.before.insert(out.before.begin(), found.before.begin(), found.before.end());
  out.after.insert(out.after.end(), found.after.begin(), found.after.end());
}

void parse_post_processor(const json& description, PostProcessor& out) {
  if (description.is_null()) return;
  const auto type = description.at("type").get<std::string>();
  if (type == "ByteLevel") return;  // only trims offsets
  if (type == "Sequence") {
    for (const auto& item : description.at("processors")) parse_post_processor(item, out);
  } else if (type == "TemplateProcessing") {
    parse_template(description, out);
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    out.before.insert(out.before.begin(), checked_id(description.at("cls").at(1), "cls"));
    out.after.push_back(checked_id(description.at("sep").at(1), "sep"));
  } else {
    fail("tokenizer.json: post-processor '", type,
         "' is not supported (known: ByteLevel, TemplateProcessing, BertProcessing, RobertaProcessing, Sequence)");
  }
}

const json& part(const json& document, const char* key) {
  static const json null;
  const auto found = document.find(key);
  return found == document.end() ? null : *found;
}

class JsonTokenizer : public Tokenizer {
 public:
  explicit JsonTokenizer(const json& document)
      : normalizer_(parse_normalizer(part(document, "normalizer"))),
        chain_(parse_pre_tokenizer(part(document, "pre_tokenizer"))),
        model_(parse_token_model(document.at("model"), chain_.byte_level)),
        decoder_(parse_token_decoder(part(document, "decoder"))) {
    parse_post_processor(part(document, "post_processor"), post_);
    for (const auto& [token, id] : model_->vocabulary()) name_token(token, id);
    if (const auto& added = part(document, "added_tokens"); !added.is_null()) {
      for (const auto& item : added) add_token(item);
    }
    leading_spaces_ = decoder_ ? decoder_->num_leading_spaces_removed() : 0;
  }

  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens) const override {
    Encoding encoding;
    run(text, add_special_tokens, encoding, false);
    return std::move(encoding.ids);
  }

  Encoding encode_with_spans(std::string_view text, bool add_special_tokens) const override {
    require(is_valid_utf8(text), "encode_with_spans: the text is not UTF-8");
    Encoding encoding;
    run(text, add_special_tokens, encoding, true);
    return encoding;
  }

  std::string decode(const std::vector<int32_t>& ids, bool skip_special_tokens) const override {
    std::vector<std::string> tokens;
    tokens.reserve(ids.size());
    for (const int32_t id : ids) {
      if (id < 0 || id >= vocab_size() || !known_[static_cast<size_t>(id)] || (skip_special_tokens && is_special(id)))
        continue;
      tokens.push_back(tokens_[static_cast<size_t>(id)]);
    }
    std::string out;
    if (decoder_) decoder_->apply(tokens);
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (!decoder_ && i > 0) out += ' ';
      out += tokens[i];
    }
    return out;
  }

  int64_t vocab_size() const override { return static_cast<int64_t>(tokens_.size()); }
  int32_t token_id(std::string_view token) const override {
    if (const auto found = added_ids_.find(token); found != added_ids_.end()) return found->second;
    const auto found = model_->vocabulary().find(token);
    return found == model_->vocabulary().end() ? -1 : found->second;
  }
  bool is_special(int32_t id) const override {
    return id >= 0 && id < vocab_size() && special_[static_cast<size_t>(id)];
  }
  std::string token_bytes(int32_t id) const override {
    if (id < 0 || id >= vocab_size()) return {};
    const auto& token = tokens_[static_cast<size_t>(id)];
    return decoder_ ? decoder_->token_bytes(token) : token;
  }
  std::string first_token_bytes(int32_t id) const override {
    if (id < 0 || id >= vocab_size()) return {};
    const auto& token = tokens_[static_cast<size_t>(id)];
    return decoder_ ? decoder_->first_token_bytes(token) : token;
  }
  size_t num_leading_spaces_removed() const override { return leading_spaces_; }

 private:
  void name_token(const std::string& token, int32_t id) {
    require(id < kHighestId, "tokenizer.json: the id ", id, " of token '", token, "' is too high");
    const auto at = static_cast<size_t>(id);
    if (at >= tokens_.size()) {
      tokens_.resize(at + 1);
      known_.resize(at + 1);
      special_.resize(at + 1);
    }
    tokens_[at] = token;
    known_[at] = true;
  }

  void add_token(const json& item) {
    AddedToken token;
    token.content = item.at("content").get<std::string>();
    token.id = checked_id(item.at("id"), ("added token '" + token.content + "'").c_str());
    token.single_word = item.value("single_word", false);
    token.lstrip = item.value("lstrip", false);
    token.rstrip = item.value("rstrip", false);
    token.special = item.value("special", false);
    token.normalized = item.value("normalized", !token.special);
    name_token(token.content, token.id);
    added_ids_[token.content] = token.id;
    if (token.special) special_[static_cast<size_t>(token.id)] = true;
    if (!token.normalized || !normalizer_) {
      // Without a normalizer the reference still looks for the two kinds one after the other.
      (token.normalized ? normalized_finder_ : raw_finder_).add(token.content, token);
    } else {
      AlignedText content{token.content, 0, {}, {}};
      normalizer_->apply(content, false);
      normalized_finder_.add(content.text, token);
      tokens_[static_cast<size_t>(token.id)] = content.text;  // as the reference decodes it since its version 0.23
    }
  }

  void run(std::string_view text, bool add_special_tokens, Encoding& out, bool with_spans) const {
    std::string repaired;
    if (!is_valid_utf8(text)) text = repaired = repair_utf8(text);
    if (add_special_tokens) give_added(post_.before, 0, out, with_spans);
    std::vector<AddedTokenPart> parts;
    if (!raw_finder_.empty()) {
      raw_finder_.split(text, parts);
    } else if (!text.empty()) {
      parts.push_back({{0, text.size()}, -1});
    }
    for (const auto& each : parts) {
      if (each.id >= 0) {
        give(each.id, each.span, out, with_spans);
      } else {
        AlignedText segment{
            std::string(text.substr(each.span.begin, each.span.end - each.span.begin)), each.span.begin, {}, {}};
        encode_segment(std::move(segment), out, with_spans);
      }
    }
    if (add_special_tokens) give_added(post_.after, text.size(), out, with_spans);
  }

  void encode_segment(AlignedText segment, Encoding& out, bool with_spans) const {
    const bool at_start = segment.base == 0;
    if (normalizer_) normalizer_->apply(segment, with_spans);
    if (normalized_finder_.empty()) {
      encode_text(std::move(segment), at_start, out, with_spans);
      return;
    }
    std::vector<AddedTokenPart> parts;
    normalized_finder_.split(segment.text, parts);
    for (const auto& each : parts) {
      if (each.id >= 0) {
        give(each.id, segment.original(each.span.begin, each.span.end), out, with_spans);
      } else {
        encode_text(segment.slice(each.span.begin, each.span.end), at_start && each.span.begin == 0, out, with_spans);
      }
    }
  }

  void encode_text(AlignedText text, bool at_start, Encoding& out, bool with_spans) const {
    if (text.text.empty()) return;
    PieceList list;
    list.pieces.push_back({0, text.text.size()});
    list.text = std::move(text);
    list.at_start = at_start;
    list.track = with_spans;
    for (const auto& step : chain_.steps) step->apply(list);
    std::vector<TokenSpan> tokens;
    const std::string_view view = list.text.text;
    for (const Span piece : list.pieces) {
      const size_t first = tokens.size();
      model_->encode(view.substr(piece.begin, piece.end - piece.begin), tokens);
      if (!with_spans) continue;
      size_t at = piece.begin;
      for (size_t i = first; i < tokens.size(); ++i) {
        out.spans.push_back(list.text.original(at, at + tokens[i].num_bytes));
        at += tokens[i].num_bytes;
      }
    }
    out.ids.reserve(out.ids.size() + tokens.size());
    for (const auto& token : tokens) out.ids.push_back(token.id);
  }

  static void give(int32_t id, Span span, Encoding& out, bool with_spans) {
    out.ids.push_back(id);
    if (with_spans) out.spans.push_back(span);
  }
  static void give_added(const std::vector<int32_t>& ids, size_t at, Encoding& out, bool with_spans) {
    for (const int32_t id : ids) give(id, {at, at}, out, with_spans);
  }

  std::unique_ptr<Normalizer> normalizer_;
  PreTokenizerChain chain_;
  std::unique_ptr<TokenModel> model_;
  std::unique_ptr<TokenDecoder> decoder_;
  PostProcessor post_;
  AddedTokenFinder raw_finder_, normalized_finder_;
  Vocabulary added_ids_;
  std::vector<std::string> tokens_;  // by id
  std::vector<bool> known_, special_;
  size_t leading_spaces_ = 0;
};

}  // namespace

Encoding Tokenizer::encode_with_spans(std::string_view, bool) const {
  fail("this tokenizer does not know where its tokens stand in the text");
}

std::unique_ptr<Tokenizer> parse_tokenizer(std::string_view tokenizer_json) {
  try {
    const json document = json::parse(tokenizer_json);
    require(document.is_object(), "tokenizer.json: not a JSON object");
    return std::make_unique<JsonTokenizer>(document);
  } catch (const json::exception& problem) {
    fail("tokenizer.json: ", problem.what());
  }
}

}  // namespace troupe
