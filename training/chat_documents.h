// Chats and prompt/completion records as token documents with a loss mask: the assistant's turns with their end tokens
// are learned, everything else is given.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "models/text/assistant_mask.h"
#include "training/documents.h"

namespace troupe {

struct ChatDocumentOptions {
  AssistantTurns turns = AssistantTurns::kAll;  // of `messages`; a completion is one turn
  std::string messages_field = "messages", prompt_field = "prompt", completion_field = "completion";
  std::string system;  // before conversations that have no system turn
};

class ChatDocuments {
 public:
  /// `chat` may be null: then only prompts and completions can be read, which stand one after the other and end with
  /// `eos_token_id` (-1: none). Tokenizer and template must outlive this object.
  ChatDocuments(const Tokenizer& tokenizer, const ChatTemplate* chat, nlohmann::json tokenizer_config,
                int32_t eos_token_id, ChatDocumentOptions options);

  /// Why the record is of no use, or "".
  std::string check(const nlohmann::json& record) const;
  /// Why a field is neither a text nor a list of messages, or "".
  static std::string check_messages(const nlohmann::json& record, const std::string& field);
  /// Tokens up to the last one that is learned; none where there is no assistant turn. Throws Error where the template
  /// does.
  Document encode(const OrderedJson& record) const;
  /// One answer to a prompt; each is a text or a list of messages. Only the answer's last turn is learned.
  Document encode_answer(const OrderedJson& prompt, const OrderedJson& answer) const;
  const ChatDocumentOptions& options() const { return options_; }

 private:
  Document render(OrderedJson messages, AssistantTurns turns) const;

  const Tokenizer& tokenizer_;
  const ChatTemplate* chat_;
  nlohmann::json tokenizer_config_;
  int32_t eos_token_id_;
  ChatDocumentOptions options_;
};

}  // namespace troupe
