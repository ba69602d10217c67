#include "models/text/vocab_merges.h"

#include "base/error.h"

namespace troupe {
namespace {

using nlohmann::json;

constexpr const char* kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

json byte_level(bool add_prefix_space, bool use_regex) {
  return {
      {"type", "ByteLevel"}, {"add_prefix_space", add_prefix_space}, {"trim_offsets", true}, {"use_regex", use_regex}};
}

/// merges.txt: a comment with the version, then two tokens a line.
json parse_merges(const std::string& text) {
  json result = json::array();
  size_t line_number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    auto line = text.substr(at, end - at);
    at = end + 1;
    ++line_number;
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty() || (line_number == 1 && line.starts_with("#version"))) continue;
    const size_t space = line.find(' ');
    require(space != line.npos && space > 0 && space + 1 < line.size() && line.find(' ', space + 1) == line.npos,
            "merges.txt, line ", line_number, ": not two tokens parted by one space");
    result.push_back({line.substr(0, space), line.substr(space + 1)});
  }
  return result;
}

std::string text_of_token(const json& settings, const char* key) {
  const auto found = settings.find(key);
  if (found == settings.end()) return "";
  if (found->is_string()) return found->get<std::string>();
  return found->is_object() ? found->value("content", std::string()) : "";
}

}  // namespace

json vocab_merges_json(const std::string& vocab, const std::string& merges, const json& settings, json added_tokens) {
  const auto vocabulary = json::parse(vocab, nullptr, false);
  require(vocabulary.is_object(), "vocab.json: not a JSON object");
  auto name = text_of_token(settings, "tokenizer_class");
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  const bool is_qwen = name == "Qwen2Tokenizer";
  const bool is_roberta = name == "RobertaTokenizer" || name == "BartTokenizer" || name == "LongformerTokenizer";
  require(name.empty() || is_qwen || is_roberta || name == "GPT2Tokenizer" || name == "CodeGenTokenizer",
          "tokenizer_config.json: tokenizer_class \"", name,
          "\" with vocab.json and merges.txt is not supported (known: GPT2Tokenizer, CodeGenTokenizer, Qwen2Tokenizer, "
          "RobertaTokenizer, BartTokenizer, LongformerTokenizer)");
  const bool prefix_space = settings.value("add_prefix_space", false);
  json result = {{"added_tokens", std::move(added_tokens)},
                 {"normalizer", nullptr},
                 {"pre_tokenizer", byte_level(prefix_space, true)},
                 {"post_processor", byte_level(false, true)},
                 {"decoder", byte_level(true, true)},
                 {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", parse_merges(merges)}}}};
  if (is_qwen) {
    result["normalizer"] = {{"type", "NFC"}};
    result["pre_tokenizer"] = {
        {"type", "Sequence"},
        {"pretokenizers",
         {{{"type", "Split"}, {"pattern", {{"Regex", kQwen2Pattern}}}, {"behavior", "Isolated"}, {"invert", false}},
          byte_level(prefix_space, false)}}};
  }
  const auto id_of = [&](const char* key, const char* fallback) {
    auto token = text_of_token(settings, key);
    if (token.empty()) token = fallback;
    const auto found = vocabulary.find(token);
    require(found != vocabulary.end(), "vocab.json: ", key, " \"", token, "\" is not in the vocabulary");
    return std::pair(token, *found);
  };
  if (is_roberta) {
    const auto [sep, sep_id] = id_of("sep_token", "</s>");
    const auto [cls, cls_id] = id_of("cls_token", "<s>");
    result["post_processor"] = {{"type", "RobertaProcessing"}, {"sep", {sep, sep_id}}, {"cls", {cls, cls_id}}};
  } else if (settings.value("add_bos_token", false)) {
    const auto [bos, bos_id] = id_of("bos_token", "<|endoftext|>");
    const json special = {{"SpecialToken", {{"id", bos}, {"type_id", 0}}}};
    result["post_processor"] = {{"type", "TemplateProcessing"},
                                {"single", {special, {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
                                {"special_tokens", {{bos, {{"id", bos}, {"ids", {bos_id}}, {"tokens", {bos}}}}}}};
  }
  return result;
}

}  // namespace troupe
