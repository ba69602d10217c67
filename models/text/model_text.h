// What a model's text side implies for whoever talks to it: the variables of its chat template, and the ids that end a
// turn.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "models/config.h"
#include "models/text/chat_template.h"
#include "models/text/tokenizer.h"

namespace troupe {

/// Variables that chat templates expect beside the messages: add_generation_prompt, bos_token, eos_token, ... as far as
/// `tokenizer_config` names them, tools and documents as none.
OrderedJson template_variables(const nlohmann::json& tokenizer_config, OrderedJson messages,
                               bool add_generation_prompt);

/// The tokenizer among a folder's files (name, content): tokenizer.json, else SentencePiece's or tiktoken's file or
/// GPT-2's vocab.json and merges.txt, with what tokenizer_config.json, special_tokens_map.json and added_tokens.json
/// say about it; null where there is none. Throws Error naming file
/// and entry.
std::unique_ptr<Tokenizer> open_tokenizer(const std::map<std::string, std::string>& files);

/// What open_tokenizer takes its tokenizer from, in a few words ("tokenizer.json (BPE)"); "" where there is none.
std::string describe_tokenizer(const std::map<std::string, std::string>& files);

/// Every id that ends a sequence: the configuration's, and the ends of turn that the tokenizer (may be null) knows.
std::vector<int64_t> stop_token_ids(const ModelConfig& config, const Tokenizer* tokenizer);

}  // namespace troupe
