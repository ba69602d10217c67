// GPT-2's pair of files: vocab.json and merges.txt, from before there was a tokenizer.json.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace troupe {

/// The tokenizer.json that transformers makes of the pair. `settings` is the folder's tokenizer_config.json: its
/// tokenizer_class says how text is cut (GPT2Tokenizer where there is none); `added_tokens` as in a tokenizer.json.
/// Throws Error naming a class that is not known, and the line of a merge that is not one.
nlohmann::json vocab_merges_json(const std::string& vocab, const std::string& merges, const nlohmann::json& settings,
                                 nlohmann::json added_tokens);

}  // namespace troupe
