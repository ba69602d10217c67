// Chat templates: the Jinja that published models use, with transformers' settings.
#pragma once

#include <ctime>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/text/regex.h"

namespace troupe {

/// Order of keys is kept: templates print dictionaries.
using OrderedJson = nlohmann::ordered_json;

struct RenderedChat {
  std::string text;
  std::vector<Span> generated;  // bytes of `text` inside {% generation %} blocks
};

class ChatTemplate {
 public:
  /// Compiles. Throws Error with line and construct.
  explicit ChatTemplate(std::string source);
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;

  /// Variables: messages, add_generation_prompt, tools, documents, bos_token, eos_token, ... Limits on time (10 s),
  /// memory (256 MiB), depth and output size (64 MiB) hold against hostile templates. Throws Error with line and name
  /// (raise_exception's text included). Thread-safe.
  std::string render(const OrderedJson& variables) const;
  /// The same, with the places that generation blocks wrote.
  RenderedChat render_with_mask(const OrderedJson& variables) const;
  /// Whether the source marks assistant turns itself.
  bool has_generation_blocks() const;
  /// Other limits than the above, of one rendering.
  void set_limits(int64_t max_bytes, double max_seconds);
  /// The clock of strftime_now; default: the system's.
  void set_clock(std::function<std::time_t()> clock);

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace troupe
