// Expressions, from the loosest binding (inline if) to the tightest (calls and subscripts). A minus binds looser than a
// filter: -3 | abs is abs(-3), as in Jinja.
#include "models/text/jinja/expression_parser.h"

#include <algorithm>

#include "models/text/jinja/builtins.h"

namespace troupe::jinja {

const Token& ExpressionParser::next() {
  const Token& token = peek();
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool ExpressionParser::take_operator(std::string_view text) {
  if (!peek_operator(text)) return false;
  next();
  return true;
}

bool ExpressionParser::take_name(std::string_view text) {
  if (!peek_name(text)) return false;
  next();
  return true;
}

const Token& ExpressionParser::expect(TokenKind kind, std::string_view what) {
  if (peek().kind != kind) fail_here("expected ", what, ", got '", peek().text, "'");
  return next();
}

void ExpressionParser::expect_operator(std::string_view text) {
  if (!take_operator(text)) fail_here("expected '", text, "', got '", peek().text, "'");
}

Expression& ExpressionParser::make(ExpressionKind kind, std::vector<const Expression*> parts) {
  auto& made = tree_->expressions.emplace_back();
  made.kind = kind;
  made.line = line();
  made.parts = std::move(parts);
  return made;
}

const Expression* ExpressionParser::literal(Value value) {
  auto& out = make(ExpressionKind::kLiteral);
  out.value = std::move(value);
  return &out;
}

const Expression* ExpressionParser::expression() {
  Nesting nesting(*this);
  const Expression* out = or_expression();
  while (take_name("if")) {
    ++conditional_depth_;
    const Expression* condition = or_expression();
    const Expression* otherwise = take_name("else") ? expression() : nullptr;
    --conditional_depth_;
    out = &make(ExpressionKind::kConditional, {condition, out, otherwise});
  }
  return out;
}

const Expression* ExpressionParser::tuple_expression(bool with_conditional) {
  const auto one = [&] { return with_conditional ? expression() : or_expression(); };
  std::vector<const Expression*> parts{one()};
  bool is_tuple = false;
  while (take_operator(",")) {
    is_tuple = true;
    const Token& token = peek();
    if (token.kind == TokenKind::kBlockEnd || token.kind == TokenKind::kVariableEnd || peek_operator(")") ||
        peek_operator("="))
      break;
    parts.push_back(one());
  }
  return is_tuple ? &make(ExpressionKind::kTuple, std::move(parts)) : parts[0];
}

const Expression* ExpressionParser::target(bool with_namespace) {
  Nesting nesting(*this);
  std::vector<const Expression*> parts;
  bool is_tuple = false;
  for (;;) {
    if (take_operator("(")) {
      parts.push_back(target());
      expect_operator(")");
    } else {
      auto& name = make(ExpressionKind::kName);
      name.text = expect(TokenKind::kName, "a name to assign to").text;
      static constexpr std::string_view kReserved[] = {"true", "false", "none", "True", "False", "None"};
      if (std::find(std::begin(kReserved), std::end(kReserved), name.text) != std::end(kReserved)) {
        fail_here("cannot assign to '", name.text, "'");
      }
      if (with_namespace && take_operator(".")) {
        auto& attribute = make(ExpressionKind::kAttribute, {&name});
        attribute.text = expect(TokenKind::kName, "an attribute").text;
        parts.push_back(&attribute);
      } else {
        parts.push_back(&name);
      }
    }
    if (!take_operator(",")) break;
    is_tuple = true;
    if (peek().kind != TokenKind::kName && !peek_operator("(")) break;
    if (peek_name("in")) break;
  }
  return is_tuple ? &make(ExpressionKind::kTuple, std::move(parts)) : parts[0];
}

const Expression* ExpressionParser::or_expression() {
  const Expression* out = and_expression();
  while (take_name("or")) out = &make(ExpressionKind::kOr, {out, and_expression()});
  return out;
}

const Expression* ExpressionParser::and_expression() {
  const Expression* out = not_expression();
  while (take_name("and")) out = &make(ExpressionKind::kAnd, {out, not_expression()});
  return out;
}

const Expression* ExpressionParser::not_expression() {
  Nesting nesting(*this);
  if (take_name("not")) return &make(ExpressionKind::kNot, {not_expression()});
  return comparison();
}

const Expression* ExpressionParser::comparison() {
  static constexpr std::pair<std::string_view, Operator> kComparisons[] = {
      {"==", Operator::kEqual},     {"!=", Operator::kNotEqual}, {"<", Operator::kLess},
      {"<=", Operator::kLessEqual}, {">", Operator::kGreater},   {">=", Operator::kGreaterEqual}};
  std::vector<const Expression*> parts{sum()};
  std::vector<Operator> operators;
  for (;;) {
    const auto found = std::find_if(std::begin(kComparisons), std::end(kComparisons),
                                    [&](const auto& entry) { return peek_operator(entry.first); });
    if (found != std::end(kComparisons)) {
      next();
      operators.push_back(found->second);
    } else if (take_name("in")) {
      operators.push_back(Operator::kIn);
    } else if (peek_name("not") && peek(1).kind == TokenKind::kName && peek(1).text == "in") {
      next();
      next();
      operators.push_back(Operator::kNotIn);
    } else {
      break;
    }
    parts.push_back(sum());
  }
  if (operators.empty()) return parts[0];
  auto& out = make(ExpressionKind::kCompare, std::move(parts));
  out.operators = std::move(operators);
  return &out;
}

const Expression* ExpressionParser::sum() {
  const Expression* left = concatenation();
  while (peek_operator("+") || peek_operator("-")) {
    const Operator op = next().text == "+" ? Operator::kAdd : Operator::kSubtract;
    auto& out = make(ExpressionKind::kBinary, {left, concatenation()});
    out.op = op;
    left = &out;
  }
  return left;
}

const Expression* ExpressionParser::concatenation() {
  std::vector<const Expression*> parts{product()};
  while (take_operator("~")) parts.push_back(product());
  return parts.size() == 1 ? parts[0] : &make(ExpressionKind::kConcat, std::move(parts));
}

const Expression* ExpressionParser::product() {
  const Expression* left = power();
  for (;;) {
    Operator op;
    if (peek_operator("*"))
      op = Operator::kMultiply;
    else if (peek_operator("/"))
      op = Operator::kDivide;
    else if (peek_operator("//"))
      op = Operator::kFloorDivide;
    else if (peek_operator("%"))
      op = Operator::kModulo;
    else
      return left;
    next();
    auto& out = make(ExpressionKind::kBinary, {left, power()});
    out.op = op;
    left = &out;
  }
}

const Expression* ExpressionParser::power() {
  const Expression* left = unary(true);
  while (take_operator("**")) {
    auto& out = make(ExpressionKind::kBinary, {left, unary(true)});
    out.op = Operator::kPower;
    left = &out;
  }
  return left;
}

const Expression* ExpressionParser::unary(bool with_filters) {
  Nesting nesting(*this);
  const Expression* out;
  if (take_operator("-")) {
    out = &make(ExpressionKind::kNegate, {unary(false)});
  } else if (take_operator("+")) {
    out = &make(ExpressionKind::kPlus, {unary(false)});
  } else {
    out = postfix(primary());
  }
  return with_filters ? filters_and_tests(out) : out;
}

const Expression* ExpressionParser::primary() {
  const Token& token = peek();
  switch (token.kind) {
    case TokenKind::kName: {
      next();
      if (token.text == "true" || token.text == "True") return literal(Value::boolean(true));
      if (token.text == "false" || token.text == "False") return literal(Value::boolean(false));
      if (token.text == "none" || token.text == "None") return literal(Value());
      uses_.caller |= token.text == "caller";
      uses_.varargs |= token.text == "varargs";
      uses_.kwargs |= token.text == "kwargs";
      auto& out = make(ExpressionKind::kName);
      out.text = token.text;
      return &out;
    }
    case TokenKind::kString: {
      std::string text = next().text;
      while (peek().kind == TokenKind::kString) text += next().text;
      return literal(Value::string(std::move(text)));
    }
    case TokenKind::kInteger:
      return literal(Value::integer(next().integer));
    case TokenKind::kFloat:
      return literal(Value::number(next().number));
    default:
      break;
  }
  if (take_operator("(")) {
    Nesting nesting(*this);
    if (take_operator(")")) return &make(ExpressionKind::kTuple);
    const Expression* out = tuple_expression(true);
    expect_operator(")");
    return out;
  }
  if (peek_operator("[") || peek_operator("{")) return list_or_dict();
  fail_here("unexpected '", token.text.empty() ? "end of template" : token.text, "'");
}

const Expression* ExpressionParser::list_or_dict() {
  const bool is_list = next().text == "[";
  const std::string_view close = is_list ? "]" : "}";
  auto& out = make(is_list ? ExpressionKind::kList : ExpressionKind::kDict);
  while (!take_operator(close)) {
    if (!out.parts.empty()) {
      expect_operator(",");
      if (take_operator(close)) break;
    }
    out.parts.push_back(expression());
    if (is_list) continue;
    expect_operator(":");
    out.parts.push_back(expression());
  }
  return &out;
}

const Expression* ExpressionParser::postfix(const Expression* subject) {
  for (;;) {
    if (take_operator(".")) {
      if (peek().kind == TokenKind::kInteger) {
        subject = &make(ExpressionKind::kItem, {subject, literal(Value::integer(next().integer))});
      } else {
        auto& out = make(ExpressionKind::kAttribute, {subject});
        out.text = expect(TokenKind::kName, "an attribute").text;
        subject = &out;
      }
    } else if (take_operator("[")) {
      subject = item(subject);
    } else if (peek_operator("(")) {
      subject = call(subject);
    } else {
      return subject;
    }
  }
}

const Expression* ExpressionParser::call(const Expression* subject) {
  auto& call = make(ExpressionKind::kCall, {subject});
  arguments(call);
  return &call;
}

const Expression* ExpressionParser::item(const Expression* subject) {
  const auto bound = [&]() -> const Expression* {
    return peek_operator(":") || peek_operator("]") || peek_operator(",") ? nullptr : expression();
  };
  std::vector<const Expression*> parts;
  bool is_tuple = false;
  for (;;) {
    const Expression* first = bound();
    if (take_operator(":")) {
      auto& slice = make(ExpressionKind::kSlice, {subject, first, bound(), nullptr});
      if (take_operator(":")) slice.parts[3] = bound();
      if (is_tuple || peek_operator(",")) fail_here("a slice of several dimensions is not supported");
      expect_operator("]");
      return &slice;
    }
    if (first == nullptr) fail_here("an empty subscript");
    parts.push_back(first);
    if (!take_operator(",")) break;
    is_tuple = true;
  }
  expect_operator("]");
  return &make(ExpressionKind::kItem, {subject, is_tuple ? &make(ExpressionKind::kTuple, std::move(parts)) : parts[0]});
}

void ExpressionParser::arguments(Expression& call) {
  Nesting nesting(*this);
  expect_operator("(");
  for (bool first = true; !take_operator(")"); first = false) {
    if (!first) {
      expect_operator(",");
      if (take_operator(")")) return;
    }
    if (take_operator("**")) {
      call.star_star = expression();
    } else if (take_operator("*")) {
      call.star = expression();
    } else if (peek().kind == TokenKind::kName && peek(1).kind == TokenKind::kOperator && peek(1).text == "=") {
      const std::string name = next().text;
      next();
      call.keywords.emplace_back(name, expression());
    } else {
      if (!call.keywords.empty() || call.star != nullptr || call.star_star != nullptr)
        fail_here("a positional argument behind a named one");
      call.parts.push_back(expression());
    }
  }
}

std::string ExpressionParser::dotted_name() {
  std::string out = expect(TokenKind::kName, "a name").text;
  while (take_operator(".")) out += "." + expect(TokenKind::kName, "a name").text;
  return out;
}

const Expression* ExpressionParser::filters(const Expression* subject, bool begins_with_name) {
  while (begins_with_name || take_operator("|")) {
    begins_with_name = false;
    auto& filter = make(ExpressionKind::kFilter, {subject});
    filter.text = dotted_name();
    if (conditional_depth_ == 0 && !is_filter(filter.text)) fail_here("no filter named '", filter.text, "'");
    if (peek_operator("(")) arguments(filter);
    subject = &filter;
  }
  return subject;
}

const Expression* ExpressionParser::filters_and_tests(const Expression* subject) {
  for (;;) {
    if (peek_operator("|")) {
      subject = filters(subject);
    } else if (take_name("is")) {
      subject = test(subject);
    } else if (peek_operator("(")) {
      subject = call(subject);
    } else {
      return subject;
    }
  }
}

const Expression* ExpressionParser::test(const Expression* subject) {
  const bool negated = take_name("not");
  auto& test = make(ExpressionKind::kTest, {subject});
  test.text = dotted_name();
  if (conditional_depth_ == 0 && !is_test(test.text)) fail_here("no test named '", test.text, "'");
  const Token& token = peek();
  if (peek_operator("(")) {
    arguments(test);
  } else if (token.kind == TokenKind::kString || token.kind == TokenKind::kInteger || token.kind == TokenKind::kFloat ||
             peek_operator("[") || peek_operator("{") ||
             (token.kind == TokenKind::kName && token.text != "else" && token.text != "or" && token.text != "and")) {
    if (token.text == "is" && token.kind == TokenKind::kName) fail_here("tests cannot be chained with 'is'");
    // `x is defined if ...` and `for ... if x is defined recursive` end here, they name no argument.
    const bool ends =
        token.kind == TokenKind::kName && (token.text == "if" || token.text == "in" || token.text == "not");
    if (!ends) test.parts.push_back(postfix(primary()));
  }
  return negated ? &make(ExpressionKind::kNot, {&test}) : &test;
}

}  // namespace troupe::jinja
