// Finding the answer in a completion, and comparing answers: the forms that mathematics data sets and models write.
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <optional>

#include "base/text.h"
#include "models/text/regex.h"
#include "rollout/reward.h"

namespace troupe {
namespace {

constexpr std::string_view kBoxed = "\\boxed{";

/// The inside of the last \boxed{...} whose braces close; none where the last one does not (a cut answer is no answer).
std::optional<std::string> last_boxed(const std::string& text, bool& found) {
  const auto at = text.rfind(kBoxed);
  found = at != std::string::npos;
  if (!found) return std::nullopt;
  int depth = 1;
  for (size_t i = at + kBoxed.size(); i < text.size(); ++i) {
    if (text[i] == '\\' && i + 1 < text.size()) {
      ++i;  // an escaped brace is a character
    } else if (text[i] == '{') {
      ++depth;
    } else if (text[i] == '}' && --depth == 0) {
      return text.substr(at + kBoxed.size(), i - at - kBoxed.size());
    }
  }
  return std::nullopt;
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
}

/// \text{C} and its kin -> C.
void unwrap(std::string& text, std::string_view command) {
  for (size_t at = 0; (at = text.find(command, at)) != std::string::npos;) {
    const auto close = text.find('}', at);
    if (close == std::string::npos) return;
    text.erase(close, 1);
    text.erase(at, command.size());
  }
}

/// Markup that does not change what is meant.
std::string normalise(std::string_view raw) {
  std::string text(trim(raw));
  for (const auto command : {"\\text{", "\\mathrm{", "\\mathbf{", "\\textbf{"}) unwrap(text, command);
  for (const auto& [from, to] : {std::pair{"{,}", ","},
                                 {"\\$", ""},
                                 {"$", ""},
                                 {"\\!", ""},
                                 {"\\,", ""},
                                 {"\\ ", " "},
                                 {"\\%", "%"},
                                 {"\\left", ""},
                                 {"\\right", ""},
                                 {"\xE2\x88\x92", "-"},
                                 {"**", ""}}) {
    replace_all(text, from, to);
  }
  text = trim(text);
  while (!text.empty() && (text.back() == '.' || text.back() == ',' || text.back() == ';' || text.back() == ':'))
    text.pop_back();
  return std::string(trim(text));
}

const Regex& thousands() {
  static const Regex regex("^[+-]?[0-9]{1,3}(,[0-9]{3})+(\\.[0-9]+)?%?$");
  return regex;
}
const Regex& fraction() {
  static const Regex regex(
      "^([+-]?)(?:\\\\[dt]?frac\\{([+-]?[0-9]+\\.?[0-9]*)\\}\\{([+-]?[0-9]+\\.?[0-9]*)\\}|([0-9]+\\.?[0-9]*)\\s*/"
      "\\s*([0-9]+\\.?[0-9]*))$");
  return regex;
}
const Regex& number() {
  static const Regex regex("^[+-]?([0-9]+\\.?[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?$");
  return regex;
}
/// A number inside prose: thousands groups bind, a comma or full stop that ends a clause does not.
const Regex& number_in_text() {
  static const Regex regex(
      "(?<![0-9.])[+-]?(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\\.[0-9]+)?|(?<![0-9])[+-]?\\.[0-9]+");
  return regex;
}

bool matches(const Regex& regex, const std::string& text, std::vector<Span>& groups) {
  return regex.search(text, 0, groups);
}

std::optional<double> value_of(std::string text) {
  std::vector<Span> groups;
  if (matches(thousands(), text, groups)) replace_all(text, ",", "");
  double scale = 1;
  if (!text.empty() && text.back() == '%') {
    text.pop_back();
    scale = 0.01;
  }
  if (matches(fraction(), text, groups)) {
    auto part = [&](size_t i) {
      return std::strtod(text.substr(groups[i].begin, groups[i].end - groups[i].begin).c_str(), nullptr);
    };
    const bool latex = groups[2].begin != std::string::npos;
    const double top = part(latex ? 2 : 4), bottom = part(latex ? 3 : 5);
    if (bottom == 0) return std::nullopt;
    return (text[0] == '-' ? -1 : 1) * top / bottom * scale;
  }
  // strtod, not stod: 1e400 is infinity, not an exception, and equals no finite answer.
  if (matches(number(), text, groups)) return std::strtod(text.c_str(), nullptr) * scale;
  return std::nullopt;
}

/// "(3.5, 12.25)", "[1,2]", "1, 2" -> its elements; none where it is one thing ("1,234" is a number).
std::optional<std::vector<std::string>> elements_of(std::string text) {
  std::vector<Span> groups;
  bool bracketed = false;
  if (text.size() >= 2 &&
      ((text.front() == '(' && text.back() == ')') || (text.front() == '[' && text.back() == ']'))) {
    text = text.substr(1, text.size() - 2);
    bracketed = true;
  }
  if (text.find(',') == std::string::npos || (!bracketed && matches(thousands(), text, groups))) return std::nullopt;
  std::vector<std::string> elements;
  for (size_t begin = 0; begin <= text.size();) {
    const auto end = std::min(text.find(',', begin), text.size());
    elements.emplace_back(trim(std::string_view(text).substr(begin, end - begin)));
    begin = end + 1;
  }
  return elements;
}

/// Bytes that are no UTF-8 (a token cut in the middle) would make the regular expressions fail: they become spaces.
std::string ascii_only(const std::string& text) {
  std::string result = text;
  for (auto& c : result) {
    if (static_cast<unsigned char>(c) >= 0x80) c = ' ';
  }
  return result;
}

}  // namespace

std::optional<std::string> extract_answer(const std::string& text, bool strict) {
  bool found = false;
  if (auto boxed = last_boxed(text, found)) return normalise(*boxed);
  if (found) return std::nullopt;
  if (const auto mark = text.rfind("####"); mark != std::string::npos) {
    const auto line = normalise(text.substr(mark + 4, text.find('\n', mark) - mark - 4));
    if (!line.empty()) return line;
  }
  for (const auto& [open, close] : {std::pair{std::string("<answer>"), std::string("</answer>")}}) {
    const auto begin = text.rfind(open);
    const auto end = begin == std::string::npos ? begin : text.find(close, begin);
    if (end != std::string::npos) return normalise(text.substr(begin + open.size(), end - begin - open.size()));
  }
  if (strict) return std::nullopt;
  std::string prose = text;
  replace_all(prose, "{,}", ",");
  replace_all(prose, "\xE2\x88\x92", "-");
  prose = ascii_only(prose);
  std::vector<Span> all;
  number_in_text().find_all(prose, all);
  if (all.empty()) return std::nullopt;
  auto last = all.back();
  // "17-25" is a difference: its sign belongs to the number only where no digit or letter stands before it.
  const bool has_sign = prose[last.begin] == '-' || prose[last.begin] == '+';
  if (has_sign && last.begin > 0 &&
      (std::isalnum(static_cast<unsigned char>(prose[last.begin - 1])) || prose[last.begin - 1] == ')'))
    ++last.begin;
  std::string answer = prose.substr(last.begin, last.end - last.begin);
  if (last.end < prose.size() && prose[last.end] == '%') answer += '%';
  return answer;
}

bool answers_equal(const std::string& left, const std::string& right) {
  const auto a = normalise(ascii_only(normalise(left))), b = normalise(ascii_only(normalise(right)));
  if (const auto x = value_of(a), y = value_of(b); x && y)
    return std::isfinite(*x) && std::isfinite(*y) &&
           std::abs(*x - *y) <= 1e-9 * std::max({1.0, std::abs(*x), std::abs(*y)});
  const auto lefts = elements_of(a), rights = elements_of(b);
  if (lefts.has_value() != rights.has_value()) return false;
  if (lefts) {
    if (lefts->size() != rights->size()) return false;
    for (size_t i = 0; i < lefts->size(); ++i) {
      if (!answers_equal((*lefts)[i], (*rights)[i])) return false;
    }
    return true;
  }
  return !a.empty() && normalise(left) == normalise(right);
}

}  // namespace troupe
