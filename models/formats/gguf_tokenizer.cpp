#include "models/formats/gguf_tokenizer.h"

#include "base/error.h"
#include "models/formats/gguf_tokenizer_models.h"

namespace troupe {
namespace {

using nlohmann::json;

constexpr const char* kSeparatorKey = "tokenizer.ggml.seperator_token_id";  // spelt so in the format

/// What stands around a text, and by default whether it does.
struct Frame {
  const char *first_key = "tokenizer.ggml.bos_token_id", *last_key = "tokenizer.ggml.eos_token_id";
  int64_t first_id = -1, last_id = -1;  // where the file names none
  bool add_first = false, add_last = false;
};

/// Puts the frame's tokens around the text (and around the second of a pair); null where there are none.
json frame_template(const GgufHeader& header, const std::vector<std::string_view>& tokens, const Frame& frame) {
  auto specials = json::object(), single = json::array(), pair = json::array();
  const auto add = [&](bool wanted, const char* key, int64_t fallback, int type) {
    const auto text = gguf_special_token(header, tokens, key, fallback);
    if (!wanted || !text.has_value()) return;
    specials[*text] = {{"id", *text}, {"ids", {header.integer(key, fallback)}}, {"tokens", {*text}}};
    const json item = {{"SpecialToken", {{"id", *text}, {"type_id", type}}}};
    if (type == 0) single.push_back(item);
    pair.push_back(item);
  };
  for (const int type : {0, 1}) {
    add(frame.add_first, frame.first_key, frame.first_id, type);
    const json text = {{"Sequence", {{"id", type == 0 ? "A" : "B"}, {"type_id", type}}}};
    if (type == 0) single.push_back(text);
    pair.push_back(text);
    add(frame.add_last, frame.last_key, frame.last_id, type);
  }
  if (specials.empty()) return {};
  return {{"type", "TemplateProcessing"},
          {"single", std::move(single)},
          {"pair", std::move(pair)},
          {"special_tokens", std::move(specials)}};
}

/// The parts of a tokenizer.json that depend on the kind; `frame` becomes what the kind has.
json parts_of_kind(const GgufHeader& header, const std::string& kind, GgufVocabulary& vocabulary, Frame& frame) {
  if (kind == "llama") {
    frame.first_id = 1, frame.last_id = 2, frame.add_first = true;
    return sentencepiece_parts(header, vocabulary);
  }
  if (kind == "bert") {
    const bool named_begin = header.contains(frame.first_key);
    if (!named_begin) frame.first_key = "tokenizer.ggml.cls_token_id";
    frame.last_key = kSeparatorKey;
    frame.first_id = 101, frame.last_id = 102, frame.add_first = true, frame.add_last = true;
    return word_piece_parts(header, vocabulary);
  }
  if (kind == "t5") {
    frame.last_id = 1, frame.add_last = true;
    return unigram_parts(header, vocabulary);
  }
  const bool is_byte_pair = kind == "gpt2" || kind == "gemma4" || kind == "whitespace";
  require(is_byte_pair, header.path, ": tokenizer.ggml.model = \"", kind,
          "\" is not supported; supported are gpt2, llama, bert, t5, gemma4, whitespace");
  const auto name = kind == "gpt2" ? header.text("tokenizer.ggml.pre", "default") : kind;
  const auto& scheme = find_gguf_pre_tokenizer(name, header.path);
  frame.add_first = scheme.add_bos;
  return byte_pair_parts(header, scheme, vocabulary);
}

}  // namespace

std::string gguf_tokenizer_json(const GgufHeader& header) {
  auto vocabulary = read_gguf_vocabulary(header);
  if (vocabulary.tokens.empty()) return "";
  json result = {{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}, {"post_processor", nullptr}};
  try {
    result["added_tokens"] = std::move(vocabulary.added);
    const auto kind = header.text("tokenizer.ggml.model");
    Frame frame;
    result.update(parts_of_kind(header, kind, vocabulary, frame));
    if (kind != "bert") {  // which always has its frame
      frame.add_first = header.boolean("tokenizer.ggml.add_bos_token", frame.add_first) || kind == "gemma4";
      frame.add_last = header.boolean("tokenizer.ggml.add_eos_token", frame.add_last);
    }
    result["post_processor"] = frame_template(header, vocabulary.tokens, frame);
    return result.dump();
  } catch (const json::exception&) {
    fail(header.path, ": a token or merge of the tokenizer is not valid UTF-8");
  }
}

json gguf_tokenizer_config(const GgufHeader& header) {
  json result = {{"tokenizer_class", "PreTrainedTokenizerFast"}, {"clean_up_tokenization_spaces", false}};
  const auto tokens = header.texts("tokenizer.ggml.tokens");
  for (const auto& [name, key] :
       {std::pair("bos_token", "tokenizer.ggml.bos_token_id"), std::pair("eos_token", "tokenizer.ggml.eos_token_id"),
        std::pair("unk_token", "tokenizer.ggml.unknown_token_id"),
        std::pair("pad_token", "tokenizer.ggml.padding_token_id"), std::pair("sep_token", kSeparatorKey),
        std::pair("cls_token", "tokenizer.ggml.cls_token_id"),
        std::pair("mask_token", "tokenizer.ggml.mask_token_id")}) {
    if (const auto text = gguf_special_token(header, tokens, key)) result[name] = *text;
  }
  for (const auto& [name, key] : {std::pair("add_bos_token", "tokenizer.ggml.add_bos_token"),
                                  std::pair("add_eos_token", "tokenizer.ggml.add_eos_token")}) {
    if (header.contains(key)) result[name] = header.boolean(key, false);
  }
  if (header.contains("tokenizer.chat_template")) result["chat_template"] = header.text("tokenizer.chat_template");
  return result;
}

}  // namespace troupe
