// Which of a model folder's files is its tokenizer, and what the others say about it.
#include "base/error.h"
#include "models/text/model_text.h"
#include "models/text/sentencepiece_tokenizer.h"
#include "models/text/tiktoken.h"

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

}  // namespace

std::unique_ptr<Tokenizer> open_tokenizer(const Files& files) {
  if (const auto found = files.find("tokenizer.json"); found != files.end()) return parse_tokenizer(found->second);
  try {
    for (const auto& [name, content] : files) {
      const bool is_model = name == "tokenizer.model" || name == "tiktoken.model";
      if (!is_model && !name.ends_with(".tiktoken")) continue;
      if (name == "tokenizer.model" && !is_tiktoken(content)) return open_sentencepiece(content, files);
      return parse_tokenizer(tiktoken_json(content, name, added_tokens_of(files)).dump());
    }
  } catch (const json::exception& problem) {
    fail("tokenizer_config.json or added_tokens.json: ", problem.what());
  }
  return nullptr;
}

}  // namespace troupe
