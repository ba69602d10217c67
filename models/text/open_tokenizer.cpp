// Which of a model folder's files is its tokenizer, and what the others say about it.
#include <algorithm>

#include "base/error.h"
#include "models/text/model_text.h"
#include "models/text/sentencepiece_tokenizer.h"
#include "models/text/tiktoken.h"
#include "models/text/vocab_merges.h"

namespace troupe {
namespace {

using nlohmann::json;
using Files = std::map<std::string, std::string>;

json read_object(const Files& files, const char* name) {
  const auto found = files.find(name);
  if (found == files.end()) return json::object();
  auto document = json::parse(found->second, nullptr, false);
  require(document.is_object(), name, ": not a JSON object");
  return document;
}

/// Tokens that the folder adds to its vocabulary, in the form of a tokenizer.json.
json added_tokens_of(const Files& files) {
  auto out = json::array();
  const auto settings = read_object(files, "tokenizer_config.json");
  if (const auto decoder = settings.find("added_tokens_decoder"); decoder != settings.end() && decoder->is_object()) {
    for (const auto& [id, token] : decoder->items()) {
      const bool is_number = !id.empty() && id.size() < 9 && id.find_first_not_of("0123456789") == id.npos;
      require(is_number && token.is_object(), "tokenizer_config.json: added_tokens_decoder: \"", id,
              "\" is not an id with its token");
      auto entry = token;
      entry["id"] = std::stoi(id);
      out.push_back(std::move(entry));
    }
    return out;
  }
  const auto added = read_object(files, "added_tokens.json");
  for (const auto& [token, id] : added.items()) {
    out.push_back({{"content", token}, {"id", id}, {"special", true}, {"normalized", false}});
  }
  return out;
}

/// vocab.json and merges.txt. The tokens that frame a text are special even where the folder lists no added ones.
std::unique_ptr<Tokenizer> open_vocab_merges(const Files& files) {
  auto settings = read_object(files, "tokenizer_config.json");
  auto added = added_tokens_of(files);
  const auto vocabulary = read_object(files, "vocab.json");
  const auto specials = read_object(files, "special_tokens_map.json");
  for (const auto& [key, value] : specials.items()) {
    if (!settings.contains(key)) settings[key] = value;
  }
  const auto is_added = [&](const std::string& text) {
    return std::any_of(added.begin(), added.end(), [&](const json& token) { return token.at("content") == text; });
  };
  for (const char* key : {"bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"}) {
    const auto found = settings.find(key);
    if (found == settings.end() || found->is_null()) continue;
    const auto text = found->is_object() ? found->value("content", std::string()) : found->get<std::string>();
    const auto id = vocabulary.find(text);
    if (id == vocabulary.end() || is_added(text)) continue;
    added.push_back({{"content", text},
                     {"id", *id},
                     {"special", true},
                     {"normalized", false},
                     {"lstrip", found->is_object() && found->value("lstrip", false)}});
  }
  return parse_tokenizer(
      vocab_merges_json(files.at("vocab.json"), files.at("merges.txt"), settings, std::move(added)).dump());
}

std::unique_ptr<Tokenizer> open_sentencepiece(const std::string& model, const Files& files) {
  SentencePieceOptions options;
  for (const auto& token : added_tokens_of(files)) {
    options.added_tokens.push_back({.id = token.at("id").get<int32_t>(),
                                    .content = token.at("content").get<std::string>(),
                                    .single_word = token.value("single_word", false),
                                    .lstrip = token.value("lstrip", false),
                                    .rstrip = token.value("rstrip", false),
                                    .special = token.value("special", false)});
  }
  const auto settings = read_object(files, "tokenizer_config.json");
  const auto flag = [&](const char* key, bool fallback) {
    const auto found = settings.find(key);
    return found == settings.end() || !found->is_boolean() ? fallback : found->get<bool>();
  };
  options.add_bos = flag("add_bos_token", true);
  options.add_eos = flag("add_eos_token", false);
  options.legacy = flag("legacy", true);
  return parse_sentencepiece(model, std::move(options));
}

/// The file that is neither a tokenizer.json nor GPT-2's pair, or the end.
Files::const_iterator find_model_file(const Files& files) {
  return std::find_if(files.begin(), files.end(), [](const auto& file) {
    return file.first == "tokenizer.model" || file.first == "tiktoken.model" || file.first.ends_with(".tiktoken");
  });
}

bool is_sentencepiece(const Files::value_type& file) {
  return file.first == "tokenizer.model" && !is_tiktoken(file.second);
}

bool has_vocab_merges(const Files& files) { return files.contains("vocab.json") && files.contains("merges.txt"); }

}  // namespace

std::string describe_tokenizer(const Files& files) {
  if (const auto found = files.find("tokenizer.json"); found != files.end()) {
    const auto document = json::parse(found->second, nullptr, false);
    const auto* model = document.is_object() && document.contains("model") ? &document["model"] : nullptr;
    const bool is_named =
        model != nullptr && model->is_object() && model->contains("type") && (*model)["type"].is_string();
    return "tokenizer.json" + (is_named ? " (" + (*model)["type"].get<std::string>() + ")" : std::string());
  }
  if (const auto found = find_model_file(files); found != files.end()) {
    return found->first + (is_sentencepiece(*found) ? " (SentencePiece)" : " (tiktoken)");
  }
  return has_vocab_merges(files) ? "vocab.json and merges.txt" : "";
}

std::unique_ptr<Tokenizer> open_tokenizer(const Files& files) {
  if (const auto found = files.find("tokenizer.json"); found != files.end()) return parse_tokenizer(found->second);
  try {
    if (const auto found = find_model_file(files); found != files.end()) {
      const auto& [name, content] = *found;
      if (is_sentencepiece(*found)) return open_sentencepiece(content, files);
      return parse_tokenizer(tiktoken_json(content, name, added_tokens_of(files)).dump());
    }
    if (has_vocab_merges(files)) return open_vocab_merges(files);
  } catch (const json::exception& problem) {
    fail("tokenizer_config.json, special_tokens_map.json or added_tokens.json: ", problem.what());
  }
  return nullptr;
}

}  // namespace troupe
