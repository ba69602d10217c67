#include "rollout/calculator.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "base/error.h"

namespace troupe {
namespace {

/// sum := product (+|- product)*;  product := factor (*|/ factor)*;  factor := -factor | (sum) | number
class Expression {
 public:
  explicit Expression(const std::string& text) : text_(text) {}
  double value() {
    const double result = sum();
    require(peek() == 0, "unexpected '", peek(), "'");
    require(std::isfinite(result), "the result is not a number");
    return result;
  }

 private:
  static constexpr int kMostDepth = 100;

  char peek() {
    while (place_ < text_.size() && text_[place_] == ' ') ++place_;
    return place_ < text_.size() ? text_[place_] : '\0';
  }
  double sum() {
    double result = product();
    for (char sign = peek(); sign == '+' || sign == '-'; sign = peek()) {
      ++place_;
      const double next = product();
      result += sign == '+' ? next : -next;
    }
    return result;
  }
  double product() {
    double result = factor();
    for (char sign = peek(); sign == '*' || sign == '/'; sign = peek()) {
      ++place_;
      const double next = factor();
      require(sign == '*' || next != 0, "division by zero");
      result = sign == '*' ? result * next : result / next;
    }
    return result;
  }
  double factor() {
    require(++depth_ < kMostDepth, "too many parentheses");
    double result = 0;
    const char first = peek();
    if (first == '-') {
      ++place_;
      result = -factor();
    } else if (first == '(') {
      ++place_;
      result = sum();
      require(peek() == ')', "a parenthesis is not closed");
      ++place_;
    } else {
      result = number();
    }
    --depth_;
    return result;
  }
  double number() {
    std::string digits;
    for (char c = peek(); (c >= '0' && c <= '9') || c == '.'; c = place_ < text_.size() ? text_[place_] : '\0') {
      digits += c;
      ++place_;
    }
    char* end = nullptr;
    const double value = std::strtod(digits.c_str(), &end);
    require(!digits.empty() && *end == '\0', "a number is missing");
    return value;
  }

  const std::string& text_;
  size_t place_ = 0;
  int depth_ = 0;
};

class Calculator : public Environment {
 public:
  TurnAnswer step(const Turn& turn) const override {
    TurnAnswer answer;
    const auto call = find_call(turn.text);
    if (!call) {
      answer.done = true;
      return answer;
    }
    std::string result;
    try {
      result = calculate(*call);
    } catch (const Error& error) {  // the policy's mistake, and its to read
      result = concat("error: ", error.what());
    }
    answer.messages.emplace_back("tool", result);
    return answer;
  }
};

}  // namespace

std::string calculate(const std::string& expression) {
  char text[64];
  std::snprintf(text, sizeof text, "%.15g", Expression(expression).value());
  return text;
}

std::optional<std::string> find_call(const std::string& text) {
  const std::string opening = "calc(";
  const auto begin = text.rfind(opening);
  if (begin == std::string::npos) return std::nullopt;
  int depth = 1;
  const auto first = begin + opening.size();
  for (auto i = first; i < text.size(); ++i) {
    depth += text[i] == '(' ? 1 : text[i] == ')' ? -1 : 0;
    if (depth == 0) return text.substr(first, i - first);
  }
  return std::nullopt;
}

std::unique_ptr<Environment> make_calculator() { return std::make_unique<Calculator>(); }

}  // namespace troupe
