// '%s' % x and '{}'.format(x), as far as templates go: texts, integers, floats with width and precision.
#include <charconv>
#include <cstdio>

#include "models/text/jinja/builtins.h"
#include "models/text/unicode.h"

namespace troupe::jinja {
namespace {

constexpr int kMaxWidth = 10000;

// One printf conversion with checked width and precision.
std::string number_text(const std::string& flags, int width, int precision, char type, const Value& value) {
  if (value.is(Kind::kUndefined)) fail_undefined(value);
  require(value.is_number(), "%", type, " format: a real number is required, not ", type_name(value));
  char buffer[kMaxWidth + 400];
  const bool is_float = type == 'f' || type == 'F' || type == 'e' || type == 'E' || type == 'g' || type == 'G';
  if (is_float) {
    const std::string form = "%" + flags + "*.*" + type;
    std::snprintf(buffer, sizeof buffer, form.c_str(), width, precision < 0 ? 6 : precision, value.as_double());
  } else {
    const std::string form = "%" + flags + "*.*ll" + (type == 'u' || type == 'i' ? 'd' : type);
    const auto integer =
        value.is(Kind::kFloat) ? static_cast<long long>(value.as_double()) : static_cast<long long>(value.as_int());
    std::snprintf(buffer, sizeof buffer, form.c_str(), width, precision, integer);
  }
  return buffer;
}

int read_integer(const std::string& text, size_t& at) {
  int value = 0;
  for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at) {
    value = value * 10 + (text[at] - '0');
    require(value <= kMaxWidth, "a format width of more than ", kMaxWidth);
  }
  return value;
}

// One field of str.format with its format specification.
std::string formatted(const Value& value, const std::string& specification) {
  if (specification.empty()) return to_text(value);
  size_t at = 0;
  char32_t fill = U' ';
  char align = 0;
  if (specification.size() > utf8_width(specification[0])) {
    const char second = specification[utf8_width(specification[0])];
    if (second == '<' || second == '>' || second == '^') {
      fill = next_code_point(specification, at);
      align = specification[at++];
    }
  }
  const auto take = [&](char c) { return at < specification.size() && specification[at] == c ? (++at, true) : false; };
  if (align == 0) align = take('<') ? '<' : take('>') ? '>' : take('^') ? '^' : 0;
  const bool plus = take('+');
  if (take('0')) {
    fill = U'0';
    if (align == 0) align = '>';
  }
  const int width = read_integer(specification, at);
  const bool thousands = take(',');
  int precision = -1;
  if (take('.')) precision = read_integer(specification, at);
  const char type = at < specification.size() ? specification[at++] : 0;
  require(at == specification.size(), "Invalid format specifier '", specification, "'");
  std::string text;
  if (value.is_number() && type != 's') {
    const bool percent = type == '%';
    const Value number = percent ? Value::number(value.as_double() * 100) : value;
    const bool as_is = type == 0 && precision < 0;
    text = as_is ? to_text(number) : number_text("", 0, precision, percent ? 'f' : type == 0 ? 'g' : type, number);
    if (thousands) {
      const size_t first = text.starts_with("-") ? 1 : 0;
      const size_t end = std::min(text.find('.'), text.size());
      for (size_t i = end; i > first + 3;) text.insert(i -= 3, ",");
    }
    if (percent) text += '%';
    if (plus && !text.starts_with("-")) text.insert(0, "+");
    if (align == 0) align = '>';
  } else {
    text = to_text(value);
    if (precision >= 0) text = get_slice(Value::string(text), Value(), Value::integer(precision), Value()).text();
    if (align == 0) align = '<';
  }
  return padded(text, width, fill, align);
}

Value converted(const Value& value, char conversion) {
  if (conversion == 0) return value;
  require(conversion == 's' || conversion == 'r', "Unknown conversion specifier '!", conversion, "'");
  return Value::string(conversion == 's' ? to_text(value) : to_repr(value));
}

}  // namespace

std::string percent_format(const std::string& format, const Value& values, bool escape) {
  const bool is_tuple = values.is(Kind::kSequence) && values.items().kind == SequenceKind::kTuple;
  size_t used = 0;
  bool used_name = false;
  const auto next = [&]() -> Value {
    if (!is_tuple) {
      require(used++ == 0, "not enough arguments for format string");
      return values;
    }
    require(used < values.items().values.size(), "not enough arguments for format string");
    return values.items().values[used++];
  };
  std::string out;
  for (size_t at = 0; at < format.size(); ++at) {
    if (format[at] != '%') {
      out += format[at];
      continue;
    }
    require(++at < format.size(), "incomplete format");
    Value named;
    bool has_name = false;
    if (format[at] == '(') {
      const size_t close = format.find(')', at);
      require(close != format.npos && values.is(Kind::kDict), "format requires a mapping");
      named = get_item(values, Value::string(format.substr(at + 1, close - at - 1)));
      if (named.is(Kind::kUndefined)) fail_undefined(named);
      at = close + 1;
      has_name = used_name = true;
    }
    std::string flags;
    while (at < format.size() && std::string_view("-+ 0#").find(format[at]) != std::string_view::npos) {
      if (flags.find(format[at]) == flags.npos) flags += format[at];
      ++at;
    }
    const auto size = [&] {  // digits, or * for an argument
      if (at >= format.size() || format[at] != '*') return read_integer(format, at);
      ++at;
      const Value given = next();
      require(given.is(Kind::kInt), "* wants int");
      require(std::abs(given.as_int()) <= kMaxWidth, "a format width of more than ", kMaxWidth);
      return static_cast<int>(given.as_int());
    };
    int width = size();
    if (width < 0) {
      width = -width;
      if (flags.find('-') == flags.npos) flags += '-';
    }
    int precision = -1;
    if (at < format.size() && format[at] == '.') precision = std::max(0, (++at, size()));
    require(at < format.size(), "incomplete format");
    const char type = format[at];
    if (type == '%') {
      out += '%';
      continue;
    }
    const Value value = has_name ? named : next();
    if (type == 's' || type == 'r') {
      std::string text = type == 'r' ? to_repr(value) : escape ? escaped_text(value) : to_text(value);
      if (escape && type == 'r') text = html_escaped(text);
      if (precision >= 0) text = get_slice(Value::string(text), Value(), Value::integer(precision), Value()).text();
      out += padded(text, width, U' ', flags.find('-') != flags.npos ? '<' : '>');
    } else if (type == 'c') {
      const bool is_character = value.is(Kind::kString) && num_code_points(value.text()) == 1;
      const bool is_code = value.is(Kind::kInt) && value.as_int() >= 0 && value.as_int() < 0x110000;
      require(is_character || is_code, "%c requires int or char");
      std::string text = is_character ? value.text() : std::string();
      if (is_code) append_utf8(text, static_cast<char32_t>(value.as_int()));
      out += padded(text, width, U' ', flags.find('-') != flags.npos ? '<' : '>');
    } else {
      require(std::string_view("diuxXofFeEgG").find(type) != std::string_view::npos, "unsupported format character '",
              type, "'");
      out += number_text(flags, width, precision, type, value);
    }
    require(out.size() <= kMaxTextBytes, "a text of more than ", kMaxTextBytes, " bytes");
  }
  const bool all_used =
      is_tuple ? used == values.items().values.size() : used == 1 || used_name || values.is(Kind::kDict);
  require(all_used, "not all arguments converted during string formatting");
  return out;
}

std::string brace_format(const std::string& format, const Arguments& arguments, bool escape) {
  enum class Numbering { kUnknown, kAutomatic, kManual } numbering = Numbering::kUnknown;
  std::string out;
  const auto put = [&](const Value& value, char conversion, const std::string& specification) {
    const auto text = formatted(converted(value, conversion), specification);
    out += escape && !(value.is_markup() && conversion == 0) ? html_escaped(text) : text;
  };
  size_t next = 0;
  for (size_t at = 0; at < format.size(); ++at) {
    const char c = format[at];
    const bool doubled = at + 1 < format.size() && format[at + 1] == c;
    if (c != '{' && c != '}') {
      out += c;
      continue;
    }
    if (doubled) {
      out += c;
      ++at;
      continue;
    }
    require(c == '{', "Single '}' encountered in format string");
    const size_t close = format.find('}', at);
    require(close != format.npos, "expected '}' before end of string");
    std::string field = format.substr(at + 1, close - at - 1), specification;
    at = close;
    if (const size_t colon = field.find(':'); colon != field.npos) {
      specification = field.substr(colon + 1);
      field.resize(colon);
    }
    char conversion = 0;
    if (field.size() >= 2 && field[field.size() - 2] == '!') {
      conversion = field.back();
      field.resize(field.size() - 2);
    }
    const size_t path = std::min(field.find_first_of(".["), field.size());
    require(path == field.size(), "attributes in format strings are not supported: '", field, "'");
    const bool is_index = field.empty() || (field[0] >= '0' && field[0] <= '9');
    if (is_index) {
      require(numbering == Numbering::kUnknown || field.empty() == (numbering == Numbering::kAutomatic),
              "cannot switch between manual field specification and automatic field numbering");
      numbering = field.empty() ? Numbering::kAutomatic : Numbering::kManual;
    }
    if (is_index) {
      size_t digits = 0;
      const size_t index = field.empty() ? next++ : static_cast<size_t>(read_integer(field, digits));
      require(index < arguments.positional.size(), "Replacement index ", index,
              " out of range for positional args tuple");
      put(arguments.positional[index], conversion, specification);
    } else {
      const Value* found = nullptr;
      for (const auto& [name, value] : arguments.keyword) {
        if (name == field) found = &value;
      }
      require(found != nullptr, "'", field, "' is not among the arguments of format");
      put(*found, conversion, specification);
    }
    require(out.size() <= kMaxTextBytes, "a text of more than ", kMaxTextBytes, " bytes");
  }
  return out;
}

}  // namespace troupe::jinja
