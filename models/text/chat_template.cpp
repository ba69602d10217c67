// Compiles and renders through models/text/jinja.
#include "models/text/chat_template.h"

#include <algorithm>

#include "models/text/jinja/interpreter.h"
#include "models/text/jinja/parser.h"

namespace troupe {

struct ChatTemplate::Implementation {
  std::unique_ptr<jinja::Tree> tree;
  jinja::Limits limits;
  std::function<std::time_t()> clock = [] { return std::time(nullptr); };

  std::string render(const OrderedJson& variables, std::vector<Span>* generated) const {
    require(variables.is_object(), "chat template: the variables are not an object");
    jinja::Budget budget(limits.max_bytes, limits.max_seconds);
    const jinja::Budget::Use use(&budget);
    std::vector<std::pair<std::string, jinja::Value>> values;
    for (const auto& [name, value] : variables.items()) values.emplace_back(name, jinja::Value::from_json(value));
    jinja::Interpreter interpreter(*tree, clock);
    try {
      return interpreter.run(values, generated);
    } catch (const std::exception& error) {
      fail("chat template, line ", interpreter.line(), ": ", error.what());
    }
  }
};

ChatTemplate::ChatTemplate(std::string source) : implementation_(std::make_unique<Implementation>()) {
  implementation_->tree = jinja::parse(source);
}

ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;

std::string ChatTemplate::render(const OrderedJson& variables) const {
  return implementation_->render(variables, nullptr);
}

RenderedChat ChatTemplate::render_with_mask(const OrderedJson& variables) const {
  RenderedChat out;
  out.text = implementation_->render(variables, &out.generated);
  return out;
}

bool ChatTemplate::has_generation_blocks() const {
  const auto& statements = implementation_->tree->statements;
  return std::any_of(statements.begin(), statements.end(),
                     [](const auto& statement) { return statement.kind == jinja::StatementKind::kGeneration; });
}

void ChatTemplate::set_limits(int64_t max_bytes, double max_seconds) {
  implementation_->limits = {max_bytes, max_seconds};
}

void ChatTemplate::set_clock(std::function<std::time_t()> clock) { implementation_->clock = std::move(clock); }

}  // namespace troupe
