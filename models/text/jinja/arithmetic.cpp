// Python's operators on numbers, texts and sequences. Integers have 64 bits: what does not fit is an error, not a wrap.
#include <cmath>

#include "models/text/jinja/builtins.h"
#include "models/text/jinja/interpreter.h"

namespace troupe::jinja {
namespace {

constexpr const char* kSymbols[] = {"+", "-", "*", "/", "//", "%", "**"};

// By reference: it is read after the operation that sets it.
int64_t checked(bool overflow, const int64_t& value) {
  require(!overflow, "an integer of more than 64 bits");
  return value;
}

int64_t integer_power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  while (exponent > 0) {
    if (exponent & 1) result = checked(__builtin_mul_overflow(result, base, &result), result);
    exponent >>= 1;
    if (exponent > 0) base = checked(__builtin_mul_overflow(base, base, &base), base);
  }
  return result;
}

Value integers(Operator op, int64_t left, int64_t right) {
  int64_t out = 0;
  switch (op) {
    case Operator::kAdd:
      return Value::integer(checked(__builtin_add_overflow(left, right, &out), out));
    case Operator::kSubtract:
      return Value::integer(checked(__builtin_sub_overflow(left, right, &out), out));
    case Operator::kMultiply:
      return Value::integer(checked(__builtin_mul_overflow(left, right, &out), out));
    case Operator::kDivide:
      require(right != 0, "division by zero");
      return Value::number(static_cast<double>(left) / static_cast<double>(right));
    case Operator::kFloorDivide:
    case Operator::kModulo: {
      require(right != 0, "integer division or modulo by zero");
      if (right == -1) return op == Operator::kModulo ? Value::integer(0) : integers(Operator::kSubtract, 0, left);
      int64_t quotient = left / right, rest = left % right;
      if (rest != 0 && (rest < 0) != (right < 0)) {
        --quotient;
        rest += right;
      }
      return Value::integer(op == Operator::kModulo ? rest : quotient);
    }
    default:
      if (right < 0) {
        require(left != 0, "0.0 cannot be raised to a negative power");
        return Value::number(std::pow(static_cast<double>(left), static_cast<double>(right)));
      }
      return Value::integer(integer_power(left, right));
  }
}

Value floats(Operator op, double left, double right) {
  switch (op) {
    case Operator::kAdd:
      return Value::number(left + right);
    case Operator::kSubtract:
      return Value::number(left - right);
    case Operator::kMultiply:
      return Value::number(left * right);
    case Operator::kDivide:
      require(right != 0, "float division by zero");
      return Value::number(left / right);
    case Operator::kFloorDivide:
    case Operator::kModulo: {
      require(right != 0, "float floor division by zero");
      double rest = std::fmod(left, right);
      if (rest != 0 && (rest < 0) != (right < 0)) rest += right;
      return Value::number(op == Operator::kModulo ? rest : std::floor((left - rest) / right + 0.5));
    }
    default:
      require(left >= 0 || right == std::floor(right), "a complex number");
      require(left != 0 || right >= 0, "0.0 cannot be raised to a negative power");
      const double power = std::pow(left, right);
      require(std::isfinite(power) || !std::isfinite(left) || !std::isfinite(right), "Numerical result out of range");
      return Value::number(power);
  }
}

Value repeated_sequence(const Value& sequence, int64_t count) {
  const auto& items = sequence.items().values;
  std::vector<Value> out;
  if (count > 0 && !items.empty()) {
    require(static_cast<uint64_t>(count) <= 1000000 / items.size(), "a list of more than a million items");
    for (int64_t i = 0; i < count; ++i) out.insert(out.end(), items.begin(), items.end());
  }
  return Value::sequence(std::move(out), sequence.items().kind);
}

bool is_list_or_tuple(const Value& value) {
  return value.is(Kind::kSequence) &&
         (value.items().kind == SequenceKind::kList || value.items().kind == SequenceKind::kTuple);
}

}  // namespace

Value binary(Operator op, const Value& left, const Value& right) {
  if (left.is(Kind::kUndefined)) fail_undefined(left);
  if (op == Operator::kModulo && left.is(Kind::kString)) {
    return text_like(left, percent_format(left.text(), right, left.is_markup()));
  }
  if (right.is(Kind::kUndefined)) fail_undefined(right);
  if (left.is_integral() && right.is_integral()) return integers(op, left.as_int(), right.as_int());
  if (left.is_number() && right.is_number()) return floats(op, left.as_double(), right.as_double());
  if (op == Operator::kAdd) {
    if (left.is(Kind::kString) && right.is(Kind::kString)) {
      require(left.text().size() + right.text().size() <= kMaxTextBytes, "a text of more than ", kMaxTextBytes,
              " bytes");
      const bool markup = left.is_markup() || right.is_markup();
      return markup ? Value::markup(escaped_text(left) + escaped_text(right))
                    : Value::string(left.text() + right.text());
    }
    if (is_list_or_tuple(left) && is_list_or_tuple(right) && left.items().kind == right.items().kind) {
      std::vector<Value> items = left.items().values;
      items.insert(items.end(), right.items().values.begin(), right.items().values.end());
      return Value::sequence(std::move(items), left.items().kind);
    }
    if (left.is(Kind::kString)) fail("can only concatenate str (not \"", type_name(right), "\") to str");
  }
  if (op == Operator::kMultiply) {
    if (left.is(Kind::kString) && right.is_integral()) return text_like(left, repeated(left.text(), right.as_int()));
    if (right.is(Kind::kString) && left.is_integral()) return text_like(right, repeated(right.text(), left.as_int()));
    if (is_list_or_tuple(left) && right.is_integral()) return repeated_sequence(left, right.as_int());
    if (is_list_or_tuple(right) && left.is_integral()) return repeated_sequence(right, left.as_int());
  }
  fail("unsupported operand type(s) for ", kSymbols[static_cast<int>(op)], ": '", type_name(left), "' and '",
       type_name(right), "'");
}

bool compare_with(Operator op, const Value& left, const Value& right) {
  switch (op) {
    case Operator::kEqual:
      return equal(left, right);
    case Operator::kNotEqual:
      return !equal(left, right);
    case Operator::kLess:
      return less(left, right);
    case Operator::kGreater:
      return less(right, left);
    case Operator::kLessEqual:
      return less(left, right) || equal(left, right);
    case Operator::kGreaterEqual:
      return less(right, left) || equal(left, right);
    case Operator::kIn:
      return contains(right, left);
    default:
      return !contains(right, left);
  }
}

}  // namespace troupe::jinja
