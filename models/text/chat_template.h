// Chat templates: the Jinja that published models use, with transformers' settings.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

namespace troupe {

/// Order of keys is kept: templates print dictionaries.
using OrderedJson = nlohmann::ordered_json;

class ChatTemplate {
 public:
  /// Compiles. Throws Error with line and construct.
  explicit ChatTemplate(std::string source);
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;

  /// Variables: messages, add_generation_prompt, tools, documents, bos_token, eos_token, ... Limits on time, depth and
  /// output size hold against hostile templates. Throws Error with line and name (raise_exception's text included).
  std::string render(const OrderedJson& variables) const;

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace troupe
