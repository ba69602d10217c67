// Any text given as a chat template: an error or an output, within limits of time and memory, never a crash.
#include "base/error.h"
#include "models/text/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto variables = troupe::OrderedJson::parse(R"({"messages": [{"role": "user", "content": "Hi"},
      {"role": "assistant", "content": "a</think>b", "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1.5}}}]}],
      "tools": null, "documents": null, "add_generation_prompt": true, "bos_token": "<s>", "n": 3, "l": [3, 1, 2]})");
  try {
    troupe::ChatTemplate chat(std::string(reinterpret_cast<const char*>(data), size));
    chat.set_limits(64 << 20, 1);
    chat.render_with_mask(variables);
  } catch (const troupe::Error&) {
  }
  return 0;
}
