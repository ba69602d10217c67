#include "models/text/model_text.h"

#include <set>

namespace troupe {

OrderedJson template_variables(const nlohmann::json& tokenizer_config, OrderedJson messages,
                               bool add_generation_prompt) {
  OrderedJson variables{{"messages", std::move(messages)},
                        {"tools", nullptr},
                        {"documents", nullptr},
                        {"add_generation_prompt", add_generation_prompt}};
  for (const char* name : {"bos_token", "eos_token", "unk_token", "pad_token"}) {
    const auto found = tokenizer_config.find(name);
    if (found == tokenizer_config.end() || found->is_null()) continue;
    // Older folders write an added token as an object, newer ones as its text.
    variables[name] = found->is_object() ? found->value("content", std::string()) : found->template get<std::string>();
  }
  return variables;
}

std::vector<int64_t> stop_token_ids(const ModelConfig& config, const Tokenizer* tokenizer) {
  std::set<int64_t> ids(config.eos_token_ids.begin(), config.eos_token_ids.end());
  if (tokenizer != nullptr) {
    for (const char* name : {"<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<end_of_turn>", "</s>"}) {
      const auto id = tokenizer->token_id(name);
      if (id >= 0 && tokenizer->is_special(id)) ids.insert(id);
    }
  }
  return {ids.begin(), ids.end()};
}

}  // namespace troupe
