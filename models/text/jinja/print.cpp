// How Python prints values, and JSON as its json.dumps writes it.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "models/text/jinja/value.h"
#include "models/text/unicode.h"

namespace troupe::jinja {
namespace {

// A list that holds one list many times, and so on, prints exponentially long.
void check_size(const std::string& text) {
  require(text.size() <= kMaxTextBytes, "a text of more than ", kMaxTextBytes, " bytes");
}

void append_hex(std::string& out, const char* prefix, uint32_t value, int digits) {
  constexpr char kDigits[] = "0123456789abcdef";
  out += prefix;
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) out += kDigits[value >> shift & 15];
}

// Python's str.isprintable for one character: no controls, separators other than the space, or unassigned ones.
bool is_printable(char32_t c) {
  if (c < 0x7F) return c >= 0x20;
  if (c < 0xA1 || c == 0xAD) return false;
  return !is_white_space(c) && !(c >= 0x200B && c <= 0x200F) && !(c >= 0x202A && c <= 0x202E) &&
         !(c >= 0x2060 && c <= 0x206F) && c != 0xFEFF && !(c >= 0xE000 && c <= 0xF8FF);
}

std::string string_repr(const std::string& text) {
  const char quote = text.find('\'') != text.npos && text.find('"') == text.npos ? '"' : '\'';
  std::string out(1, quote);
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const char32_t c = next_code_point(text, at);
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\\' || c == static_cast<char32_t>(quote)) {
      out += '\\';
      out += static_cast<char>(c);
    } else if (is_printable(c)) {
      out.append(text, begin, at - begin);
    } else if (c < 0x100) {
      append_hex(out, "\\x", c, 2);
    } else if (c < 0x10000) {
      append_hex(out, "\\u", c, 4);
    } else {
      append_hex(out, "\\U", c, 8);
    }
  }
  return out + quote;
}

std::string joined_reprs(const std::vector<Value>& values) {
  std::string out;
  for (size_t i = 0; i < values.size(); ++i) {
    out += (i > 0 ? ", " : "") + to_repr(values[i]);
    check_size(out);
  }
  return out;
}

std::string dict_repr(const DictObject& dict) {
  std::string out = "{";
  for (const auto& [key, value] : dict.values) {
    if (out.size() > 1) out += ", ";
    out += to_repr(key) + ": " + to_repr(value);
    check_size(out);
  }
  return out + "}";
}

void append_json_string(std::string& out, const std::string& text, bool ensure_ascii) {
  out += '"';
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const char32_t c = next_code_point(text, at);
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (c < 0x20 || (ensure_ascii && c >= 0x7F && c < 0x10000 && c != 0x7F)) {
          append_hex(out, "\\u", c, 4);
        } else if (ensure_ascii && c >= 0x10000) {
          append_hex(out, "\\u", 0xD800 + ((c - 0x10000) >> 10), 4);
          append_hex(out, "\\u", 0xDC00 + ((c - 0x10000) & 0x3FF), 4);
        } else {
          out.append(text, begin, at - begin);
        }
    }
  }
  out += '"';
}

std::string json_float(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return float_text(value);
}

std::string json_key(const Value& key) {
  switch (key.kind()) {
    case Kind::kString:
      return key.text();
    case Kind::kBool:
      return key.as_int() != 0 ? "true" : "false";
    case Kind::kNone:
      return "null";
    case Kind::kInt:
      return std::to_string(key.as_int());
    case Kind::kFloat:
      return json_float(key.as_double());
    default:
      fail("keys must be str, int, float, bool or None, not ", type_name(key));
  }
}

class JsonWriter {
 public:
  explicit JsonWriter(const JsonStyle& style) : style_(style) {}
  void write(const Value& value) {
    charge(1);
    check_size(out);
    switch (value.kind()) {
      case Kind::kNone:
        out += "null";
        break;
      case Kind::kBool:
        out += value.as_int() != 0 ? "true" : "false";
        break;
      case Kind::kInt:
        out += std::to_string(value.as_int());
        break;
      case Kind::kFloat:
        out += json_float(value.as_double());
        break;
      case Kind::kString:
        append_json_string(out, value.text(), style_.ensure_ascii);
        break;
      case Kind::kDict:
        write_dict(value.entries());
        break;
      case Kind::kSequence:
        if (value.items().kind == SequenceKind::kList || value.items().kind == SequenceKind::kTuple) {
          write_list(value.items().values);
          break;
        }
        [[fallthrough]];
      default:
        fail("Object of type ", type_name(value), " is not JSON serializable");
    }
  }
  std::string out;

 private:
  void new_line() {
    if (style_.indent < 0) return;
    out += '\n';
    for (int i = 0; i < level_; ++i) out += style_.indent_text;
  }
  void write_list(const std::vector<Value>& values) {
    if (values.empty()) {
      out += "[]";
      return;
    }
    out += '[';
    ++level_;
    for (size_t i = 0; i < values.size(); ++i) {
      if (i > 0) out += style_.item_separator;
      new_line();
      write(values[i]);
    }
    --level_;
    new_line();
    out += ']';
  }
  void write_dict(const DictObject& dict) {
    if (dict.values.empty()) {
      out += "{}";
      return;
    }
    std::vector<std::pair<Value, Value>> entries = dict.values;
    if (style_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(),
                       [](const auto& a, const auto& b) { return less(a.first, b.first); });
    }
    out += '{';
    ++level_;
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) out += style_.item_separator;
      new_line();
      append_json_string(out, json_key(entries[i].first), style_.ensure_ascii);
      out += style_.key_separator;
      write(entries[i].second);
    }
    --level_;
    new_line();
    out += '}';
  }
  const JsonStyle& style_;
  int level_ = 0;
};

}  // namespace

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  std::string_view shortest(buffer, static_cast<size_t>(end - buffer));
  std::string out;
  if (shortest.front() == '-') {
    out += '-';
    shortest.remove_prefix(1);
  }
  const size_t mark = shortest.find('e');
  int exponent = 0;
  const char* digits_of_exponent = shortest.data() + mark + 1;
  if (*digits_of_exponent == '+') ++digits_of_exponent;
  std::from_chars(digits_of_exponent, end, exponent);
  std::string digits;
  for (const char c : shortest.substr(0, mark)) {
    if (c != '.') digits += c;
  }
  const auto count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out += digits.substr(0, 1);
    if (count > 1) out += "." + digits.substr(1);
    const int size = std::abs(exponent);
    return out + (exponent < 0 ? "e-" : "e+") + (size < 10 ? "0" : "") + std::to_string(size);
  }
  if (exponent < 0) return out + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  if (count <= exponent + 1) return out + digits + std::string(static_cast<size_t>(exponent + 1 - count), '0') + ".0";
  return out + digits.substr(0, static_cast<size_t>(exponent) + 1) + "." +
         digits.substr(static_cast<size_t>(exponent) + 1);
}

std::string to_text(const Value& value) {
  if (value.is(Kind::kString)) return value.text();
  if (value.is(Kind::kUndefined)) return {};
  return to_repr(value);
}

std::string to_repr(const Value& value) {
  charge(1);
  switch (value.kind()) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return value.as_int() != 0 ? "True" : "False";
    case Kind::kInt:
      return std::to_string(value.as_int());
    case Kind::kFloat:
      return float_text(value.as_double());
    case Kind::kString:
      return value.is_markup() ? "Markup(" + string_repr(value.text()) + ")" : string_repr(value.text());
    case Kind::kDict:
      return dict_repr(value.entries());
    case Kind::kNamespace:
      return "<Namespace " + dict_repr(value.entries()) + ">";
    case Kind::kSequence: {
      const auto& items = value.items();
      switch (items.kind) {
        case SequenceKind::kList:
          return "[" + joined_reprs(items.values) + "]";
        case SequenceKind::kTuple:
          return "(" + joined_reprs(items.values) + (items.values.size() == 1 ? ",)" : ")");
        case SequenceKind::kView:
          return items.printed + "([" + joined_reprs(items.values) + "])";
        default:
          return items.printed;
      }
    }
    case Kind::kCallable:
      return value.function().attribute && value.function().function ? "<Macro '" + value.function().name + "'>"
                                                                     : "<function " + value.function().name + ">";
    case Kind::kLoop:
      return "<LoopContext>";
  }
  return {};
}

std::string to_json(const Value& value, const JsonStyle& style) {
  JsonWriter writer(style);
  writer.write(value);
  return std::move(writer.out);
}

}  // namespace troupe::jinja
