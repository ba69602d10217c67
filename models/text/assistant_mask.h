// Which bytes and tokens of a rendered conversation the assistant wrote: what supervised training learns from.
#pragma once

#include <cstdint>
#include <vector>

#include "models/text/chat_template.h"
#include "models/text/tokenizer.h"

namespace troupe {

enum class AssistantTurns { kAll, kLast };

/// Places of the assistant's turns: the template's generation blocks, else by prefix rendering (from the generation
/// prompt to the end of the turn, its closing token included, white space behind that not). Throws Error where a turn's
/// prefix does not render as a prefix of the whole conversation.
RenderedChat render_assistant_turns(const ChatTemplate& chat, const OrderedJson& variables, AssistantTurns turns);

struct MaskedTokens {
  std::vector<int32_t> ids;
  std::vector<uint8_t> mask;  // 1 where the token begins inside an assistant's turn
};
MaskedTokens tokenize_assistant_turns(const Tokenizer& tokenizer, const RenderedChat& rendered);

}  // namespace troupe
