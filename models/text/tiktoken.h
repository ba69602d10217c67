// tiktoken's files: one token a line, its bytes in base64 and its rank. They hold neither the regular expression that
// cuts the text nor special tokens: both follow from the model that a file belongs to.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace troupe {

bool is_tiktoken(std::string_view file);

/// The file as a tokenizer.json. `name` is the file's: "qwen.tiktoken", "tiktoken.model" (Kimi), "tokenizer.model"
/// (Llama 3), "cl100k_base.tiktoken", "o200k_base.tiktoken", ... `added_tokens` as in a tokenizer.json; where it is
/// empty, Llama 3 and Qwen get the special tokens that their published code adds. Throws Error naming the line that is
/// wrong, or the names that are known.
nlohmann::json tiktoken_json(std::string_view file, const std::string& name, nlohmann::json added_tokens);

}  // namespace troupe
