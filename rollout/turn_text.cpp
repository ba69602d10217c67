#include "rollout/turn_text.h"

#include "base/error.h"
#include "models/text/model_text.h"

namespace troupe {

TurnText::TurnText(const Tokenizer& tokenizer, const std::string& template_source, nlohmann::json tokenizer_config)
    : tokenizer_(tokenizer), tokenizer_config_(std::move(tokenizer_config)) {
  if (!template_source.empty()) template_ = std::make_unique<ChatTemplate>(template_source);
}

std::string TurnText::between(const std::vector<std::pair<std::string, std::string>>& messages) const {
  std::string text;
  if (template_ == nullptr) {
    for (const auto& [role, content] : messages) text += content;
    return text;
  }
  // Rendered behind a turn that says nothing but this: what comes after it is what was asked for.
  const std::string mark = "troupe-turn-mark";
  auto chat = OrderedJson::array({{{"role", "user"}, {"content", "x"}}, {{"role", "assistant"}, {"content", mark}}});
  for (const auto& [role, content] : messages) chat.push_back({{"role", role}, {"content", content}});
  text = template_->render(template_variables(tokenizer_config_, std::move(chat), true));
  const auto place = text.find(mark);
  require(place != std::string::npos, "the chat template leaves out an assistant's turn that has been answered");
  return text.substr(place + mark.size());
}

std::vector<int32_t> TurnText::tokens(int32_t last_token,
                                      const std::vector<std::pair<std::string, std::string>>& messages) const {
  auto text = between(messages);
  if (tokenizer_.is_special(last_token)) {
    const auto end = tokenizer_.decode({last_token}, /*skip_special_tokens=*/false);
    if (!end.empty() && text.starts_with(end)) text.erase(0, end.size());
  }
  return tokenizer_.encode(text, false);
}

}  // namespace troupe
