// Recursive descent over Jinja's grammar: statements here, expressions in expression_parser.cpp.
#include "models/text/jinja/parser.h"

#include <algorithm>

#include "models/text/jinja/expression_parser.h"

namespace troupe::jinja {
namespace {

class Parser : ExpressionParser {
 public:
  explicit Parser(std::string_view source) : ExpressionParser(tokenize(source)) {}

  std::unique_ptr<Tree> run() {
    tree().body = body({});
    return take_tree();
  }

 private:
  Statement& make(StatementKind kind) {
    auto& made = tree().statements.emplace_back();
    made.kind = kind;
    made.line = line();
    return made;
  }

  // Statements up to a block tag named by one of `ends`, which is left current ({% behind us); with no ends up to the
  // end.
  Body body(const std::vector<std::string_view>& ends) {
    Nesting nesting(*this);
    Body out;
    for (;;) {
      const Token& token = peek();
      if (token.kind == TokenKind::kEnd) {
        if (!ends.empty()) fail_here("the template ends where '", ends.back(), "' was expected");
        return out;
      }
      if (token.kind == TokenKind::kText) {
        auto& text = make(StatementKind::kText);
        text.text = next().text;
        out.push_back(&text);
      } else if (token.kind == TokenKind::kVariableBegin) {
        next();
        auto& print = make(StatementKind::kPrint);
        print.value = tuple_expression(true);
        expect(TokenKind::kVariableEnd, "}}");
        out.push_back(&print);
      } else {
        next();  // {%
        if (peek().kind != TokenKind::kName) fail_here("a block tag must begin with a name");
        if (std::find(ends.begin(), ends.end(), peek().text) != ends.end()) return out;
        out.push_back(statement());
      }
    }
  }

  void end_tag() { expect(TokenKind::kBlockEnd, "%}"); }
  // The body of a statement up to its end tag, which is consumed.
  Body body_until(std::string_view end) {
    end_tag();
    Body out = body({end});
    next();
    end_tag();
    return out;
  }

  const Statement* statement() {
    const std::string name = next().text;
    if (name == "if") return if_statement();
    if (name == "for") return for_statement();
    if (name == "set") return set_statement();
    if (name == "macro") return macro_statement();
    if (name == "call") return call_statement();
    if (name == "filter") return filter_statement();
    if (name == "with") return with_statement();
    if (name == "autoescape") {  // off is what there is: a scope of its own, no more
      if (!take_name("false") && !take_name("False")) fail_here("autoescape other than false is not supported");
      auto& out = make(StatementKind::kWith);
      out.body = body_until("endautoescape");
      return &out;
    }
    if (name == "generation") {
      auto& out = make(StatementKind::kGeneration);
      out.body = body_until("endgeneration");
      return &out;
    }
    if (name == "block") {  // without inheritance a block renders where it stands
      auto& out = make(StatementKind::kBlock);
      out.text = expect(TokenKind::kName, "the block's name").text;
      out.scoped = take_name("scoped");
      for (const auto* block : tree().blocks) {
        if (block->text == out.text) fail_here("block '", out.text, "' defined twice");
      }
      tree().blocks.push_back(&out);
      end_tag();
      out.body = body({"endblock"});
      next();
      if (peek().kind == TokenKind::kName) next();
      end_tag();
      return &out;
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0) fail_here("'", name, "' outside of a loop");
      auto& out = make(name == "break" ? StatementKind::kBreak : StatementKind::kContinue);
      end_tag();
      return &out;
    }
    fail_here("statement '", name, "' is not supported");
  }

  const Statement* if_statement() {
    Statement* const first = &make(StatementKind::kIf);
    Statement* current = first;
    ++conditional_depth_;
    for (;;) {
      current->value = tuple_expression(false);
      end_tag();
      current->body = body({"elif", "else", "endif"});
      const std::string end = next().text;
      if (end == "elif") {
        auto& other = make(StatementKind::kIf);
        current->otherwise.push_back(&other);
        current = &other;
        continue;
      }
      if (end == "else")
        current->otherwise = body_until("endif");
      else
        end_tag();
      break;
    }
    --conditional_depth_;
    return first;
  }

  const Statement* for_statement() {
    auto& out = make(StatementKind::kFor);
    out.target = target();
    if (!take_name("in")) fail_here("'in' expected in a for tag");
    out.value = tuple_expression(false);
    if (take_name("if")) out.condition = expression();
    out.recursive = take_name("recursive");
    end_tag();
    ++loops_;
    out.body = body({"else", "endfor"});
    --loops_;
    if (next().text == "else")
      out.otherwise = body_until("endfor");
    else
      end_tag();
    return &out;
  }

  const Statement* set_statement() {
    const int at_line = line();
    const Expression* where = target(/*with_namespace=*/true);
    if (take_operator("=")) {
      auto& out = make(StatementKind::kSet);
      out.line = at_line;
      out.target = where;
      out.value = tuple_expression(true);
      end_tag();
      return &out;
    }
    auto& out = make(StatementKind::kSetBlock);
    out.line = at_line;
    out.target = where;
    out.value = peek_operator("|") ? filters(nullptr) : nullptr;
    out.body = body_until("endset");
    return &out;
  }

  void parameters(Statement& out) {
    expect_operator("(");
    bool needs_fallback = false;
    while (!take_operator(")")) {
      if (!out.parameters.empty()) {
        expect_operator(",");
        if (take_operator(")")) return;
      }
      Parameter parameter{expect(TokenKind::kName, "a parameter's name").text, nullptr};
      if (take_operator("=")) {
        parameter.fallback = expression();
        needs_fallback = true;
      } else if (needs_fallback) {
        fail_here("parameter '", parameter.name, "' without a default follows one with a default");
      }
      out.parameters.push_back(parameter);
    }
  }

  // The body of a macro, which notes whether it speaks of caller, varargs and kwargs. `break` may not leave it.
  void macro_body(Statement& out, std::string_view end) {
    const MacroUses before = std::exchange(uses_, {});
    const int loops = std::exchange(loops_, 0);
    out.body = body_until(end);
    loops_ = loops;
    out.uses_caller = uses_.caller;
    out.uses_varargs = uses_.varargs;
    out.uses_kwargs = uses_.kwargs;
    uses_ = before;
  }

  const Statement* macro_statement() {
    auto& out = make(StatementKind::kMacro);
    out.text = expect(TokenKind::kName, "the macro's name").text;
    parameters(out);
    macro_body(out, "endmacro");
    return &out;
  }

  const Statement* call_statement() {
    auto& out = make(StatementKind::kCall);
    if (peek_operator("(")) parameters(out);
    out.value = expression();
    if (out.value->kind != ExpressionKind::kCall) fail_here("a call tag needs a call");
    macro_body(out, "endcall");
    return &out;
  }

  const Statement* filter_statement() {
    auto& out = make(StatementKind::kFilter);
    out.value = filters(nullptr, /*begins_with_name=*/true);
    out.body = body_until("endfilter");
    return &out;
  }

  const Statement* with_statement() {
    auto& out = make(StatementKind::kWith);
    while (peek().kind != TokenKind::kBlockEnd) {
      if (!out.parameters.empty()) expect_operator(",");
      Parameter variable{expect(TokenKind::kName, "a variable's name").text, nullptr};
      expect_operator("=");
      variable.fallback = expression();
      out.parameters.push_back(variable);
    }
    out.body = body_until("endwith");
    return &out;
  }

  int loops_ = 0;
};

}  // namespace

std::unique_ptr<Tree> parse(std::string_view source) {
  Parser parser(source);
  return parser.run();
}

}  // namespace troupe::jinja
