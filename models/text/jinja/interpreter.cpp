// Statements and expressions. Scopes follow Jinja: for, macro, call, set and filter blocks, with and generation open
// one; if does not.
#include "models/text/jinja/interpreter.h"

#include <algorithm>

#include "models/text/jinja/builtins.h"
#include "models/text/jinja/loop.h"

namespace troupe::jinja {

constexpr int kMaxDepth = 1000;  // of statements and expressions inside one another, macros and loops included

class Interpreter::DepthGuard {
 public:
  explicit DepthGuard(Interpreter& interpreter) : interpreter_(interpreter) {
    if (++interpreter_.depth_ > kMaxDepth) {
      --interpreter_.depth_;
      fail("recursion deeper than ", kMaxDepth);
    }
    charge(1);
  }
  ~DepthGuard() { --interpreter_.depth_; }
  DepthGuard(const DepthGuard&) = delete;
  DepthGuard& operator=(const DepthGuard&) = delete;

 private:
  Interpreter& interpreter_;
};

void Scope::set(std::string_view name, Value value) {
  for (auto& [own, held] : names) {
    if (own == name) {
      held = std::move(value);
      return;
    }
  }
  names.emplace_back(name, std::move(value));
}

Interpreter::Interpreter(const Tree& tree, std::function<std::time_t()> clock)
    : tree_(tree), clock_(std::move(clock)) {}

Interpreter::~Interpreter() {
  for (auto& each : namespaces_) each.entries().clear();
}

std::string Interpreter::run(const std::vector<std::pair<std::string, Value>>& variables,
                             std::vector<Span>* generated) {
  generated_ = generated;
  Scope root(nullptr);
  root_ = &root;
  for (const auto& [name, value] : variables) root.set(name, value);
  execute(tree_.body, root);
  return std::move(output_);
}

template <class F>
auto Interpreter::in_new_scope(Scope& parent, F body) {
  auto scope = std::make_unique<Scope>(&parent);
  struct Keeper {
    Interpreter& interpreter;
    std::unique_ptr<Scope>& scope;
    ~Keeper() {
      if (scope->captured) interpreter.captured_scopes_.push_back(std::move(scope));
    }
  } keeper{*this, scope};
  return body(*scope);
}

void Interpreter::write(std::string_view text) {
  require(out_->size() + text.size() <= kMaxTextBytes, "an output of more than ", kMaxTextBytes, " bytes");
  charge(text.size() / 512);
  out_->append(text);
}

std::string Interpreter::captured(const Body& body, Scope& parent) {
  std::string text;
  struct Redirect {
    std::string*& out;
    std::string* before;
    ~Redirect() { out = before; }
  } redirect{out_, out_};
  out_ = &text;
  in_new_scope(parent, [&](Scope& scope) { execute(body, scope); });
  return text;
}

Interpreter::Flow Interpreter::execute(const Body& body, Scope& scope) {
  for (const auto* statement : body) {
    const Flow flow = execute(*statement, scope);
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::execute(const Statement& statement, Scope& scope) {
  DepthGuard guard(*this);
  line_ = statement.line;
  switch (statement.kind) {
    case StatementKind::kText:
      write(statement.text);
      break;
    case StatementKind::kPrint: {
      const Value value = evaluate(*statement.value, scope);
      value.is(Kind::kString) ? write(value.text()) : write(to_text(value));
      break;
    }
    case StatementKind::kIf:
      return execute(is_true(evaluate(*statement.value, scope)) ? statement.body : statement.otherwise, scope);
    case StatementKind::kFor:
      return execute_for(statement, scope);
    case StatementKind::kSet:
    case StatementKind::kSetBlock:
      execute_set(statement, scope);
      break;
    case StatementKind::kMacro:
      scope.set(statement.text, make_macro(statement, scope, statement.text));
      break;
    case StatementKind::kCall: {
      const Expression& call_expression = *statement.value;
      const Value callee = evaluate(*call_expression.parts[0], scope);
      Arguments arguments = arguments_of(call_expression, scope);
      arguments.keyword.emplace_back("caller", make_macro(statement, scope, "caller"));
      write(to_text(call(callee, arguments)));
      break;
    }
    case StatementKind::kFilter: {
      const Value body = Value::string(captured(statement.body, scope));
      write(to_text(evaluate_filter(*statement.value, &body, scope)));
      break;
    }
    case StatementKind::kWith:
      return in_new_scope(scope, [&](Scope& inner) {
        for (const auto& variable : statement.parameters) inner.set(variable.name, evaluate(*variable.fallback, scope));
        return execute(statement.body, inner);
      });
    case StatementKind::kBlock:  // sees what stands at the top, and around it only where it says so
      return in_new_scope(statement.scoped ? scope : *root_,
                          [&](Scope& inner) { return execute(statement.body, inner); });
    case StatementKind::kGeneration:
      execute_generation(statement, scope);
      break;
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNormal;
}

void Interpreter::execute_generation(const Statement& statement, Scope& scope) {
  const size_t begin = out_->size();
  require(generated_ == nullptr || out_ == &output_,
          "a generation block inside of a macro, set or filter block: its place in the text is not known");
  in_new_scope(scope, [&](Scope& inner) { execute(statement.body, inner); });
  if (generated_ != nullptr) generated_->push_back({begin, out_->size()});
}

Interpreter::Flow Interpreter::execute_for(const Statement& statement, Scope& scope) {
  loop_over(statement, scope, iterate(evaluate(*statement.value, scope)), 1);
  return Flow::kNormal;
}

void Interpreter::loop_over(const Statement& statement, Scope& scope, std::vector<Value> items, int64_t depth) {
  DepthGuard guard(*this);
  if (statement.condition != nullptr) {
    std::vector<Value> kept;
    for (auto& item : items) {
      const bool keep = in_new_scope(scope, [&](Scope& inner) {
        assign(*statement.target, item, inner);
        return is_true(evaluate(*statement.condition, inner));
      });
      if (keep) kept.push_back(std::move(item));
    }
    items = std::move(kept);
  }
  if (items.empty()) {
    in_new_scope(scope, [&](Scope& inner) { execute(statement.otherwise, inner); });
    return;
  }
  const auto loop = std::make_shared<LoopObject>(std::move(items));
  loop->depth = depth;
  if (statement.recursive) {
    for (Scope* each = &scope; each != nullptr; each = each->parent) each->captured = true;
    loop->recurse = [&statement, &scope, depth](Interpreter& self, Arguments& arguments) {
      require(arguments.positional.size() == 1 && arguments.keyword.empty(), "loop() takes one argument");
      std::string text;
      std::string* const before = std::exchange(self.out_, &text);
      try {
        self.loop_over(statement, scope, iterate(arguments.positional[0]), depth + 1);
      } catch (...) {
        self.out_ = before;
        throw;
      }
      self.out_ = before;
      return Value::string(std::move(text));
    };
  }
  for (; loop->index < loop->items.size(); ++loop->index) {
    const Flow flow = in_new_scope(scope, [&](Scope& inner) {
      inner.names.emplace_back("loop", Value::loop(loop));
      assign(*statement.target, loop->items[loop->index], inner);
      return execute(statement.body, inner);
    });
    if (flow == Flow::kBreak) break;
  }
}

void Interpreter::execute_set(const Statement& statement, Scope& scope) {
  Value value;
  if (statement.kind == StatementKind::kSet) {
    value = evaluate(*statement.value, scope);
  } else {
    value = Value::string(captured(statement.body, scope));
    if (statement.value != nullptr) {
      const Value body = value;
      value = evaluate_filter(*statement.value, &body, scope);
    }
  }
  assign(*statement.target, value, scope);
}

void Interpreter::assign(const Expression& target, const Value& value, Scope& scope) {
  if (target.kind == ExpressionKind::kName) {
    scope.set(target.text, value);
  } else if (target.kind == ExpressionKind::kAttribute) {
    const Value holder = lookup(target.parts[0]->text, scope);
    require(holder.is(Kind::kNamespace), "cannot assign attribute on non-namespace object '", target.parts[0]->text,
            "'");
    require(!target.text.starts_with("_"), "names that begin with an underscore cannot be stored on a namespace: '",
            target.text, "'");
    holder.entries().set(Value::string(target.text), value);
  } else {
    const auto items = iterate(value);
    require(items.size() == target.parts.size(), items.size() < target.parts.size() ? "not enough" : "too many",
            " values to unpack (expected ", target.parts.size(), ", got ", items.size(), ")");
    for (size_t i = 0; i < items.size(); ++i) assign(*target.parts[i], items[i], scope);
  }
}

Value Interpreter::make_macro(const Statement& statement, Scope& scope, const std::string& name) {
  for (Scope* each = &scope; each != nullptr; each = each->parent) each->captured = true;
  return Value::callable(
      name,
      [&statement, &scope, name](Interpreter& self, Arguments& arguments) {
        return self.call_macro(statement, scope, name, arguments);
      },
      [&statement, name](std::string_view attribute) {
        if (attribute == "name") return Value::string(name);
        if (attribute == "caller") return Value::boolean(statement.uses_caller);
        if (attribute == "catch_varargs") return Value::boolean(statement.uses_varargs);
        if (attribute == "catch_kwargs") return Value::boolean(statement.uses_kwargs);
        if (attribute != "arguments")
          return Value::undefined(concat("'Macro object' has no attribute '", attribute, "'"));
        std::vector<Value> names;
        for (const auto& parameter : statement.parameters) names.push_back(Value::string(parameter.name));
        return Value::tuple(std::move(names));
      });
}

Value Interpreter::call_macro(const Statement& statement, Scope& scope, const std::string& name, Arguments& arguments) {
  DepthGuard guard(*this);
  const auto& parameters = statement.parameters;
  std::string text;
  in_new_scope(scope, [&](Scope& inner) {
    std::vector<Value> extra;
    std::vector<bool> given(parameters.size());
    for (size_t i = 0; i < arguments.positional.size(); ++i) {
      if (i < parameters.size()) {
        inner.set(parameters[i].name, arguments.positional[i]);
        given[i] = true;
      } else {
        require(statement.uses_varargs, "macro '", name, "' takes not more than ", parameters.size(), " argument(s)");
        extra.push_back(arguments.positional[i]);
      }
    }
    std::vector<std::pair<Value, Value>> unknown;
    for (const auto& argument : arguments.keyword) {
      const std::string& keyword = argument.first;
      const Value& value = argument.second;
      const auto found =
          std::find_if(parameters.begin(), parameters.end(), [&](const auto& each) { return each.name == keyword; });
      if (found != parameters.end()) {
        const auto at = static_cast<size_t>(found - parameters.begin());
        require(!given[at], "macro '", name, "' got multiple values for argument '", keyword, "'");
        inner.set(found->name, value);
        given[at] = true;
      } else if (keyword == "caller") {
        require(statement.uses_caller, "macro '", name,
                "' was invoked with two values for the special caller argument or does not call caller()");
        inner.set("caller", value);
      } else {
        require(statement.uses_kwargs, "macro '", name, "' takes no keyword argument '", keyword, "'");
        unknown.emplace_back(Value::string(keyword), value);
      }
    }
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (given[i]) continue;
      inner.set(parameters[i].name, parameters[i].fallback != nullptr
                                        ? evaluate(*parameters[i].fallback, inner)
                                        : Value::undefined("parameter '" + parameters[i].name + "' was not provided"));
    }
    if (statement.uses_varargs) inner.set("varargs", Value::tuple(std::move(extra)));
    if (statement.uses_kwargs) inner.set("kwargs", Value::dict(std::move(unknown)));
    text = captured(statement.body, inner);
  });
  return Value::string(std::move(text));
}

Value Interpreter::call(const Value& callee, Arguments& arguments) {
  if (callee.is(Kind::kUndefined)) fail_undefined(callee);
  if (callee.is(Kind::kLoop)) {
    const auto& recurse = callee.loop_state().recurse;
    require(static_cast<bool>(recurse), "The loop must have the 'recursive' marker to be called recursively.");
    return Function(recurse)(*this, arguments);
  }
  require(callee.is(Kind::kCallable) && callee.function().function, "'", type_name(callee), "' object is not callable");
  return callee.function().function(*this, arguments);
}

Value Interpreter::lookup(std::string_view name, const Scope& scope) const {
  for (const Scope* each = &scope; each != nullptr; each = each->parent) {
    for (const auto& [own, value] : each->names) {
      if (own == name) return value;
    }
  }
  if (const Value* global = find_global(name)) return *global;
  if (name == "self" && !tree_.blocks.empty()) return blocks_object();
  return Value::undefined("'" + std::string(name) + "' is undefined");
}

Value Interpreter::blocks_object() const {
  return Value::callable("self", {}, [&tree = tree_](std::string_view name) {
    const auto found = std::find_if(tree.blocks.begin(), tree.blocks.end(),
                                    [&](const Statement* block) { return block->text == name; });
    if (found == tree.blocks.end()) return Value::undefined(concat("there is no block called '", name, "'"));
    return Value::callable(std::string(name), [block = *found](Interpreter& self, Arguments&) {
      return Value::string(self.captured(block->body, *self.root_));
    });
  });
}

Arguments Interpreter::arguments_of(const Expression& expression, Scope& scope) {
  Arguments out;
  for (size_t i = 1; i < expression.parts.size(); ++i) out.positional.push_back(evaluate(*expression.parts[i], scope));
  if (expression.star != nullptr) {
    for (auto& item : iterate(evaluate(*expression.star, scope))) out.positional.push_back(std::move(item));
  }
  for (const auto& [name, value] : expression.keywords) out.keyword.emplace_back(name, evaluate(*value, scope));
  if (expression.star_star != nullptr) {
    const Value more = evaluate(*expression.star_star, scope);
    require(more.is(Kind::kDict), "argument after ** must be a mapping, not ", type_name(more));
    for (const auto& [key, value] : more.entries().values) out.keyword.emplace_back(to_text(key), value);
  }
  return out;
}

Value Interpreter::evaluate_filter(const Expression& expression, const Value* body, Scope& scope) {
  const Expression* subject = expression.parts[0];
  Value value = subject == nullptr                                            ? *body
                : subject->kind == ExpressionKind::kFilter && body != nullptr ? evaluate_filter(*subject, body, scope)
                                                                              : evaluate(*subject, scope);
  Arguments arguments = arguments_of(expression, scope);
  line_ = expression.line;
  return apply_filter(*this, expression.text, value, arguments);
}

Value Interpreter::compare(const Expression& expression, Scope& scope) {
  Value left = evaluate(*expression.parts[0], scope);
  for (size_t i = 0; i < expression.operators.size(); ++i) {
    Value right = evaluate(*expression.parts[i + 1], scope);
    if (!compare_with(expression.operators[i], left, right)) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value Interpreter::evaluate(const Expression& expression, Scope& scope) {
  DepthGuard guard(*this);
  line_ = expression.line;
  const auto part = [&](size_t i) { return evaluate(*expression.parts[i], scope); };
  switch (expression.kind) {
    case ExpressionKind::kLiteral:
      return expression.value;
    case ExpressionKind::kName:
      return lookup(expression.text, scope);
    case ExpressionKind::kList:
    case ExpressionKind::kTuple: {
      std::vector<Value> items;
      for (size_t i = 0; i < expression.parts.size(); ++i) items.push_back(part(i));
      return Value::sequence(std::move(items),
                             expression.kind == ExpressionKind::kList ? SequenceKind::kList : SequenceKind::kTuple);
    }
    case ExpressionKind::kDict: {
      std::vector<std::pair<Value, Value>> items;
      for (size_t i = 0; i + 1 < expression.parts.size(); i += 2) {
        Value key = part(i);
        items.emplace_back(std::move(key), part(i + 1));
      }
      return Value::dict(std::move(items));
    }
    case ExpressionKind::kNot:
      return Value::boolean(!is_true(part(0)));
    case ExpressionKind::kNegate: {
      const Value operand = part(0);
      if (operand.is(Kind::kFloat)) return Value::number(-operand.as_double());
      return binary(Operator::kSubtract, Value::integer(0), operand);
    }
    case ExpressionKind::kPlus:
      return binary(Operator::kAdd, Value::integer(0), part(0));
    case ExpressionKind::kBinary: {
      const Value left = part(0);
      return binary(expression.op, left, part(1));
    }
    case ExpressionKind::kCompare:
      return compare(expression, scope);
    case ExpressionKind::kAnd: {
      Value left = part(0);
      return is_true(left) ? part(1) : left;
    }
    case ExpressionKind::kOr: {
      Value left = part(0);
      return is_true(left) ? left : part(1);
    }
    case ExpressionKind::kConditional:
      if (is_true(part(0))) return part(1);
      if (expression.parts[2] != nullptr) return part(2);
      return Value::undefined("the inline if-expression evaluated to false and no else section was defined");
    case ExpressionKind::kConcat: {
      std::string text;
      for (size_t i = 0; i < expression.parts.size(); ++i) {
        text += to_text(part(i));
        require(text.size() <= kMaxTextBytes, "a text of more than ", kMaxTextBytes, " bytes");
      }
      return Value::string(std::move(text));
    }
    case ExpressionKind::kAttribute: {
      const Value subject = part(0);
      return get_attribute(subject, expression.text);
    }
    case ExpressionKind::kItem: {
      const Value subject = part(0);
      return get_item(subject, part(1));
    }
    case ExpressionKind::kSlice: {
      const Value subject = part(0);
      const auto bound = [&](size_t i) { return expression.parts[i] == nullptr ? Value() : part(i); };
      const Value start = bound(1), stop = bound(2);
      return get_slice(subject, start, stop, bound(3));
    }
    case ExpressionKind::kCall: {
      const Value callee = part(0);
      Arguments arguments = arguments_of(expression, scope);
      line_ = expression.line;
      return call(callee, arguments);
    }
    case ExpressionKind::kFilter:
      return evaluate_filter(expression, nullptr, scope);
    case ExpressionKind::kTest: {
      const Value subject = part(0);
      Arguments arguments = arguments_of(expression, scope);
      line_ = expression.line;
      return Value::boolean(apply_test(*this, expression.text, subject, arguments));
    }
  }
  return {};
}

}  // namespace troupe::jinja
