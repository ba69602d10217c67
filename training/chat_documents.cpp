#include "training/chat_documents.h"

#include "base/error.h"
#include "models/text/model_text.h"

namespace troupe {
namespace {

/// A text is one turn of `role`; a list of messages stays as it is.
OrderedJson to_messages(const OrderedJson& field, const char* role) {
  if (!field.is_string()) return field;
  return OrderedJson::array({OrderedJson{{"role", role}, {"content", field}}});
}

std::string joined_contents(const OrderedJson& messages) {
  std::string text;
  for (const auto& message : messages) text += message.value("content", std::string());
  return text;
}

/// Nothing behind the last learned token teaches anything.
void cut_behind_mask(Document& document) {
  size_t end = document.loss_mask.size();
  while (end > 0 && document.loss_mask[end - 1] == 0) --end;
  document.tokens.resize(end);
  document.loss_mask.resize(end);
}

}  // namespace

ChatDocuments::ChatDocuments(const Tokenizer& tokenizer, const ChatTemplate* chat, nlohmann::json tokenizer_config,
                             int32_t eos_token_id, ChatDocumentOptions options)
    : tokenizer_(tokenizer),
      chat_(chat),
      tokenizer_config_(std::move(tokenizer_config)),
      eos_token_id_(eos_token_id),
      options_(std::move(options)) {}

std::string ChatDocuments::check_messages(const nlohmann::json& record, const std::string& field) {
  const auto found = record.find(field);
  if (found == record.end()) return concat("has no field \"", field, "\"");
  if (found->is_string()) return "";
  bool is_right = found->is_array() && !found->empty();
  if (is_right)
    for (const auto& message : *found)
      is_right = is_right && message.is_object() && message.contains("role") && message["role"].is_string();
  return is_right ? "" : concat("field \"", field, "\" is neither a text nor a list of messages");
}

std::string ChatDocuments::check(const nlohmann::json& record) const {
  if (record.contains(options_.messages_field)) {
    if (record[options_.messages_field].is_string())
      return concat("field \"", options_.messages_field, "\" is a text, not a list of messages");
    if (chat_ == nullptr) return "is a chat, and the model has no chat template (data.chat_template names one)";
    return check_messages(record, options_.messages_field);
  }
  if (!record.contains(options_.prompt_field))
    return concat("has neither \"", options_.messages_field, "\" nor \"", options_.prompt_field, "\"");
  const auto reason = check_messages(record, options_.prompt_field);
  return reason.empty() ? check_messages(record, options_.completion_field) : reason;
}

Document ChatDocuments::render(OrderedJson messages, AssistantTurns turns) const {
  if (!options_.system.empty() && messages.front().value("role", std::string()) != "system")
    messages.insert(messages.begin(), OrderedJson{{"role", "system"}, {"content", options_.system}});
  auto masked = tokenize_assistant_turns(
      tokenizer_,
      render_assistant_turns(*chat_, template_variables(tokenizer_config_, std::move(messages), false), turns));
  Document document{std::move(masked.ids), std::move(masked.mask)};
  cut_behind_mask(document);
  return document;
}

Document ChatDocuments::encode(const OrderedJson& record) const {
  const auto messages = record.find(options_.messages_field);
  if (messages != record.end()) return render(*messages, options_.turns);
  return encode_answer(record.at(options_.prompt_field), record.at(options_.completion_field));
}

Document ChatDocuments::encode_answer(const OrderedJson& prompt, const OrderedJson& answer) const {
  auto messages = to_messages(prompt, "user");
  const auto turns = to_messages(answer, "assistant");
  if (chat_ != nullptr) {
    for (const auto& turn : turns) messages.push_back(turn);
    return render(std::move(messages), AssistantTurns::kLast);
  }
  Document document;
  document.tokens = tokenizer_.encode(options_.system + joined_contents(messages), true);
  document.loss_mask.assign(document.tokens.size(), 0);
  auto tokens = tokenizer_.encode(joined_contents(turns), false);
  if (eos_token_id_ >= 0) tokens.push_back(eos_token_id_);
  document.tokens.insert(document.tokens.end(), tokens.begin(), tokens.end());
  document.loss_mask.resize(document.tokens.size(), 1);
  return document;
}

}  // namespace troupe
