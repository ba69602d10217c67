// Assistant turns by generation blocks or by rendering growing prefixes.
#include "models/text/assistant_mask.h"

#include "base/error.h"

namespace troupe {
namespace {

std::vector<Span> spans_by_prefix(const ChatTemplate& chat, OrderedJson variables, const std::string& text) {
  const OrderedJson messages = variables.at("messages");
  std::vector<Span> spans;
  OrderedJson prefix = OrderedJson::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    const bool is_assistant = messages[i].value("role", std::string()) == "assistant";
    const auto render = [&](bool add_generation_prompt) {
      variables["messages"] = prefix;
      variables["add_generation_prompt"] = add_generation_prompt;
      std::string part = chat.render(variables);
      require(text.starts_with(part), "assistant mask: the conversation up to message ", i,
              " does not render as a prefix of the whole; the template needs generation blocks");
      return part.size();
    };
    const size_t begin = is_assistant ? render(true) : 0;
    prefix.push_back(messages[i]);
    if (!is_assistant) continue;
    size_t end = render(false);
    while (end > begin && (text[end - 1] == '\n' || text[end - 1] == ' ')) --end;
    spans.push_back({begin, end});
  }
  return spans;
}

}  // namespace

RenderedChat render_assistant_turns(const ChatTemplate& chat, const OrderedJson& variables, AssistantTurns turns) {
  RenderedChat out = chat.render_with_mask(variables);
  if (!chat.has_generation_blocks()) out.generated = spans_by_prefix(chat, variables, out.text);
  if (turns == AssistantTurns::kLast && out.generated.size() > 1)
    out.generated.erase(out.generated.begin(), out.generated.end() - 1);
  return out;
}

MaskedTokens tokenize_assistant_turns(const Tokenizer& tokenizer, const RenderedChat& rendered) {
  Encoding encoding = tokenizer.encode_with_spans(rendered.text, false);
  MaskedTokens out;
  out.mask.assign(encoding.ids.size(), 0);
  size_t turn = 0;
  for (size_t i = 0; i < encoding.ids.size(); ++i) {
    while (turn < rendered.generated.size() && rendered.generated[turn].end <= encoding.spans[i].begin) ++turn;
    out.mask[i] = turn < rendered.generated.size() && encoding.spans[i].begin >= rendered.generated[turn].begin;
  }
  out.ids = std::move(encoding.ids);
  return out;
}

}  // namespace troupe
