// The half of the parser that reads expressions.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "models/text/jinja/ast.h"
#include "models/text/jinja/lexer.h"

namespace troupe::jinja {

class ExpressionParser {
 protected:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)), tree_(std::make_unique<Tree>()) {}

  /// A whole expression, inline if included.
  const Expression* expression();
  /// One expression, or a tuple where commas follow. Without `with_conditional`, an `if` behind it is left alone.
  const Expression* tuple_expression(bool with_conditional);
  /// What may be assigned to: a name or a tuple of names; with `with_namespace` also name.attribute.
  const Expression* target(bool with_namespace = false);
  /// | filter | filter ..., applied to `subject` (null: the body of a block).
  const Expression* filters(const Expression* subject, bool begins_with_name = false);

  // -- tokens ---
  const Token& peek(size_t ahead = 0) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
  const Token& next();
  int line() const { return peek().line; }
  bool peek_operator(std::string_view text) const { return peek().kind == TokenKind::kOperator && peek().text == text; }
  bool peek_name(std::string_view text) const { return peek().kind == TokenKind::kName && peek().text == text; }
  bool take_operator(std::string_view text);
  bool take_name(std::string_view text);
  const Token& expect(TokenKind kind, std::string_view what);
  void expect_operator(std::string_view text);
  template <class... Ts>
  [[noreturn]] void fail_here(const Ts&... parts) const {
    fail("chat template, line ", line(), ": ", parts...);
  }

  /// Counts nesting, so that hostile templates cannot exhaust the stack.
  class Nesting {
   public:
    explicit Nesting(ExpressionParser& parser) : parser_(parser) {
      if (++parser_.nesting_ > 200) parser_.fail_here("nested more than 200 deep");
    }
    ~Nesting() { --parser_.nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    ExpressionParser& parser_;
  };

  Tree& tree() { return *tree_; }
  std::unique_ptr<Tree> take_tree() { return std::move(tree_); }

  struct MacroUses {
    bool caller = false, varargs = false, kwargs = false;
  };
  MacroUses uses_;             // names that the macro being read speaks of
  int conditional_depth_ = 0;  // unknown filters and tests are an error at once only where they surely run

 private:
  Expression& make(ExpressionKind kind, std::vector<const Expression*> parts = {});
  const Expression* literal(Value value);
  const Expression* or_expression();
  const Expression* and_expression();
  const Expression* not_expression();
  const Expression* comparison();
  const Expression* sum();
  const Expression* concatenation();
  const Expression* product();
  const Expression* power();
  const Expression* unary(bool with_filters);
  const Expression* primary();
  const Expression* list_or_dict();
  const Expression* postfix(const Expression* subject);
  const Expression* filters_and_tests(const Expression* subject);
  const Expression* test(const Expression* subject);
  const Expression* call(const Expression* subject);
  const Expression* item(const Expression* subject);
  void arguments(Expression& call);
  std::string dotted_name();

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int nesting_ = 0;
  std::unique_ptr<Tree> tree_;
};

}  // namespace troupe::jinja
