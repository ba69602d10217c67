// Runs a parsed template over its variables.
#pragma once

#include <cstdint>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "models/text/jinja/ast.h"
#include "models/text/jinja/value.h"
#include "models/text/regex.h"

namespace troupe::jinja {

/// Names of one block; inner blocks see outer ones, assignments stay inside.
struct Scope : Object {
  explicit Scope(Scope* outer) : Object(128), parent(outer) {}
  Scope* parent;
  std::vector<std::pair<std::string_view, Value>> names;  // views into the tree and the caller's variables
  bool captured = false;  // a macro speaks of it, so it lives to the end of the rendering
  void set(std::string_view name, Value value);
};

struct Limits {
  int64_t max_bytes = int64_t{256} << 20;
  double max_seconds = 10;
};

class Interpreter {
 public:
  Interpreter(const Tree& tree, std::function<std::time_t()> clock);
  ~Interpreter();

  /// Renders; `generated` gets the byte ranges of generation blocks where it is not null.
  std::string run(const std::vector<std::pair<std::string, Value>>& variables, std::vector<Span>* generated);

  Value call(const Value& callee, Arguments& arguments);
  std::time_t now() const { return clock_(); }
  int line() const { return line_; }
  void keep_namespace(Value made) { namespaces_.push_back(std::move(made)); }

 private:
  enum class Flow { kNormal, kBreak, kContinue };

  // -- statements ---
  Flow execute(const Body& body, Scope& scope);
  Flow execute(const Statement& statement, Scope& scope);
  Flow execute_for(const Statement& statement, Scope& scope);
  void loop_over(const Statement& statement, Scope& scope, std::vector<Value> items, int64_t depth);
  void execute_set(const Statement& statement, Scope& scope);
  void execute_generation(const Statement& statement, Scope& scope);
  std::string captured(const Body& body, Scope& parent);
  void assign(const Expression& target, const Value& value, Scope& scope);
  Value make_macro(const Statement& statement, Scope& scope, const std::string& name);
  Value call_macro(const Statement& statement, Scope& scope, const std::string& name, Arguments& arguments);
  template <class F>
  auto in_new_scope(Scope& parent, F body);
  void write(std::string_view text);

  // -- expressions ---
  Value evaluate(const Expression& expression, Scope& scope);
  Value lookup(std::string_view name, const Scope& scope) const;
  Value evaluate_filter(const Expression& expression, const Value* body, Scope& scope);
  Value compare(const Expression& expression, Scope& scope);
  Arguments arguments_of(const Expression& expression, Scope& scope);
  Value blocks_object() const;  // `self`: renders blocks by name

  const Tree& tree_;
  std::function<std::time_t()> clock_;
  std::vector<std::unique_ptr<Scope>> captured_scopes_;
  std::vector<Value> namespaces_;  // cleared at the end: one may hold itself
  Scope* root_ = nullptr;
  std::string output_;
  std::string* out_ = &output_;
  std::vector<Span>* generated_ = nullptr;
  int line_ = 0;
  int depth_ = 0;

  class DepthGuard;
};

/// Python's arithmetic. Throws Error as Python does.
Value binary(Operator op, const Value& left, const Value& right);
bool compare_with(Operator op, const Value& left, const Value& right);

}  // namespace troupe::jinja
