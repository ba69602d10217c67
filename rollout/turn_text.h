// The tokens between two turns of the policy: what ends its turn, the messages that answer it, and the generation
// prompt of its next one. What it sampled is never written out and cut into tokens again (invariant 5).
#pragma once

#include "models/text/chat_template.h"
#include "models/text/tokenizer.h"

namespace troupe {

class TurnText {
 public:
  /// `template_source` empty: the messages' contents stand one after the other. The tokenizer must outlive this object.
  TurnText(const Tokenizer& tokenizer, const std::string& template_source, nlohmann::json tokenizer_config);
  /// After a turn whose last token was `last_token`: where that is what the template ends a turn with, it is not said
  /// twice. Throws Error where the template does.
  std::vector<int32_t> tokens(int32_t last_token,
                              const std::vector<std::pair<std::string, std::string>>& messages) const;

 private:
  std::string between(const std::vector<std::pair<std::string, std::string>>& messages) const;

  const Tokenizer& tokenizer_;
  std::unique_ptr<ChatTemplate> template_;
  nlohmann::json tokenizer_config_;
};

}  // namespace troupe
