// The tree of a parsed template. Nodes live in the tree's arena, so that deep ones are freed without recursion.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/text/jinja/value.h"

namespace troupe::jinja {

enum class ExpressionKind {
  kLiteral,
  kName,
  kList,
  kTuple,
  kDict,
  kNot,
  kNegate,
  kPlus,
  kBinary,
  kCompare,
  kAnd,
  kOr,
  kConditional,
  kConcat,
  kAttribute,
  kItem,
  kSlice,
  kCall,
  kFilter,
  kTest
};
enum class Operator {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn
};

struct Expression {
  ExpressionKind kind = ExpressionKind::kLiteral;
  int line = 0;
  std::string text;  // name, attribute, filter, test
  Value value;       // literal
  Operator op = Operator::kAdd;
  std::vector<Operator> operators;  // of a comparison chain: between parts[i] and parts[i + 1]
  // Operands in order. Call, filter, test: the callee or subject, then positional arguments. Conditional: test, then,
  // else (or null). Slice: subject, start, stop, step (null where absent). Dict: key, value, key, value...
  std::vector<const Expression*> parts;
  std::vector<std::pair<std::string, const Expression*>> keywords;
  const Expression* star = nullptr;       // *arguments
  const Expression* star_star = nullptr;  // **arguments
};

enum class StatementKind {
  kText,
  kPrint,
  kIf,
  kFor,
  kSet,
  kSetBlock,
  kMacro,
  kCall,
  kFilter,
  kWith,
  kBreak,
  kContinue,
  kGeneration,
  kBlock
};

struct Statement;
using Body = std::vector<const Statement*>;

struct Parameter {
  std::string name;
  const Expression* fallback = nullptr;
};

struct Statement {
  StatementKind kind = StatementKind::kText;
  int line = 0;
  std::string text;                    // text; name of a macro
  const Expression* target = nullptr;  // of set, for: a name, a tuple of names, or an attribute of a namespace
  const Expression* value =
      nullptr;  // printed, tested, assigned, iterated, called; filter of a block (its subject is null)
  const Expression* condition = nullptr;  // of a for's `if`
  std::vector<Parameter> parameters;      // of a macro, of a call block; with: its names and values
  Body body, otherwise;
  bool recursive = false;
  bool scoped = false;  // of a block
  bool uses_caller = false, uses_varargs = false, uses_kwargs = false;
};

struct Tree {
  std::deque<Expression> expressions;
  std::deque<Statement> statements;
  std::vector<const Statement*> blocks;
  Body body;
};

}  // namespace troupe::jinja
