// Filters that lay text out: pprint, indent, truncate, wordwrap, filesizeformat; and those of markup: striptags,
// xmlattr. The rest is in filters.cpp.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>

#include "models/text/jinja/builtins.h"
#include "models/text/jinja/interpreter.h"
#include "models/text/regex.h"
#include "models/text/unicode.h"

namespace troupe::jinja {
namespace {

int64_t width_of(const std::string& text) { return static_cast<int64_t>(num_code_points(text)); }

/// Python's order of keys, by the names of their types where two have none.
bool key_before(const Value& left, const Value& right) {
  try {
    return less(left, right);
  } catch (const Error&) {
    return std::string_view(type_name(left)) < type_name(right);
  }
}

/// The same value with every dictionary in the order of its keys, as Python's pprint prints it.
Value with_sorted_keys(const Value& value) {
  if (value.is(Kind::kDict)) {
    auto items = value.entries().values;
    std::stable_sort(items.begin(), items.end(),
                     [](const auto& a, const auto& b) { return key_before(a.first, b.first); });
    for (auto& [key, item] : items) item = with_sorted_keys(item);
    return Value::dict(std::move(items));
  }
  const bool is_plain = value.is(Kind::kSequence) &&
                        (value.items().kind == SequenceKind::kList || value.items().kind == SequenceKind::kTuple);
  if (!is_plain) return value;
  std::vector<Value> items;
  for (const auto& item : value.items().values) items.push_back(with_sorted_keys(item));
  return Value::sequence(std::move(items), value.items().kind);
}

/// Python's pprint.pformat at its default width of 80. `indent`: the column where a value begins; `allowance`: what
/// must fit behind it on its last line.
class PrettyPrinter {
 public:
  std::string print(const Value& value) {
    format(with_sorted_keys(value), 0, 0, 0);
    return std::move(out_);
  }

 private:
  static constexpr int64_t kWidth = 80;

  void format(const Value& value, int64_t indent, int64_t allowance, int level) {
    const auto text = to_repr(value);
    require(out_.size() + text.size() <= kMaxTextBytes, "a text of more than ", kMaxTextBytes, " bytes");
    if (width_of(text) <= kWidth - indent - allowance) {
      out_ += text;
    } else if (value.is(Kind::kDict)) {
      out_ += '{';
      format_entries(value.entries().values, indent + 1, allowance + 1, level + 1);
      out_ += '}';
    } else if (value.is(Kind::kSequence) && value.items().kind == SequenceKind::kList) {
      out_ += '[';
      format_items(value.items().values, indent + 1, allowance + 1, level + 1);
      out_ += ']';
    } else if (value.is(Kind::kSequence) && value.items().kind == SequenceKind::kTuple) {
      const std::string end = value.items().values.size() == 1 ? ",)" : ")";
      out_ += '(';
      format_items(value.items().values, indent + 1, allowance + static_cast<int64_t>(end.size()), level + 1);
      out_ += end;
    } else if (value.is(Kind::kString) && !value.text().empty() && !value.is_markup()) {
      format_text(value.text(), indent, allowance, level + 1);
    } else {
      out_ += text;
    }
  }

  void new_line(int64_t indent) { out_ += "\n" + std::string(static_cast<size_t>(indent), ' '); }

  void format_entries(const std::vector<std::pair<Value, Value>>& entries, int64_t indent, int64_t allowance,
                      int level) {
    for (size_t i = 0; i < entries.size(); ++i) {
      const bool is_last = i + 1 == entries.size();
      const auto key = to_repr(entries[i].first) + ": ";
      out_ += key;
      format(entries[i].second, indent + width_of(key), is_last ? allowance : 1, level);
      if (is_last) return;
      out_ += ',';
      new_line(indent);
    }
  }

  void format_items(const std::vector<Value>& items, int64_t indent, int64_t allowance, int level) {
    for (size_t i = 0; i < items.size(); ++i) {
      const bool is_last = i + 1 == items.size();
      format(items[i], indent, is_last ? allowance : 1, level);
      if (is_last) return;
      out_ += ',';
      new_line(indent);
    }
  }

  static int64_t repr_width(const std::string& text) { return width_of(to_repr(Value::string(text))); }

  /// A long string as neighbouring literals, cut behind line ends and spaces.
  void format_text(const std::string& text, int64_t indent, int64_t allowance, int level) {
    if (level == 1) ++indent, ++allowance;
    const int64_t width = kWidth - indent;
    const auto lines = split_lines(text, /*keep_ends=*/true);
    std::vector<std::string> chunks;
    for (size_t i = 0; i < lines.size(); ++i) {
      const bool last_line = i + 1 == lines.size();
      const auto& line = lines[i].text();
      if (repr_width(line) <= (last_line ? width - allowance : width)) {
        chunks.push_back(line);
        continue;
      }
      static const Regex parts_regex(pcre_pattern("\\S*\\s*"));
      std::vector<Span> parts;
      parts_regex.find_all(line, parts);
      std::string current;
      for (size_t j = 0; j < parts.size(); ++j) {
        const auto part = line.substr(parts[j].begin, parts[j].end - parts[j].begin);
        const int64_t room = last_line && j + 1 == parts.size() ? width - allowance : width;
        if (repr_width(current + part) > room) {
          if (!current.empty()) chunks.push_back(current);
          current = part;
        } else {
          current += part;
        }
      }
      if (!current.empty()) chunks.push_back(current);
    }
    const bool in_brackets = level == 1 && chunks.size() > 1;
    if (in_brackets) out_ += '(';
    for (size_t i = 0; i < chunks.size(); ++i) {
      if (i > 0) new_line(indent);
      out_ += to_repr(Value::string(chunks[i]));
    }
    if (in_brackets) out_ += ')';
  }

  std::string out_;
};

/// Python's textwrap.wrap of one line, without expanding tabs or replacing white space.
class Wrapper {
 public:
  Wrapper(int64_t width, bool break_long_words, bool break_on_hyphens)
      : width_(width), break_long_words_(break_long_words), break_on_hyphens_(break_on_hyphens) {}

  std::vector<std::string> wrap(const std::string& line) const {
    auto chunks = split(line);
    std::reverse(chunks.begin(), chunks.end());
    std::vector<std::string> lines;
    while (!chunks.empty()) {
      std::vector<std::string> current;
      int64_t used = 0;
      if (!lines.empty() && is_blank(chunks.back())) chunks.pop_back();
      while (!chunks.empty() && used + width_of(chunks.back()) <= width_) {
        used += width_of(chunks.back());
        current.push_back(std::move(chunks.back()));
        chunks.pop_back();
      }
      if (!chunks.empty() && width_of(chunks.back()) > width_) break_word(chunks, current, used);
      if (!current.empty() && is_blank(current.back())) current.pop_back();
      if (current.empty()) continue;
      lines.emplace_back();
      for (const auto& chunk : current) lines.back() += chunk;
    }
    return lines;
  }

 private:
  static bool is_blank(const std::string& text) { return stripped(text, nullptr, true, true).empty(); }

  std::vector<std::string> split(const std::string& line) const {
    // Runs of white space; dashes between words; words, cut behind the hyphens inside them.
    static const Regex hyphens(
        R"([\t\n\x0b\x0c\r ]+|(?<=[\w!"'&.,?])-{2,}(?=\w)|[^\t\n\x0b\x0c\r ]+?(?:-(?:(?<=[^\d\W]{2}-)|(?<=[^\d\W]-[^\d\W]-))(?=[^\d\W]-?[^\d\W])|(?=[\t\n\x0b\x0c\r ]|\z)|(?<=[\w!"'&.,?])(?=-{2,}\w)))");
    static const Regex spaces(R"([\t\n\x0b\x0c\r ]+|[^\t\n\x0b\x0c\r ]+)");
    std::vector<Span> found;
    (break_on_hyphens_ ? hyphens : spaces).find_all(line, found);
    std::vector<std::string> chunks;
    for (const Span span : found) chunks.push_back(line.substr(span.begin, span.end - span.begin));
    return chunks;
  }

  void break_word(std::vector<std::string>& chunks, std::vector<std::string>& current, int64_t used) const {
    const int64_t room = width_ < 1 ? 1 : width_ - used;
    auto& word = chunks.back();
    if (!break_long_words_) {
      if (!current.empty()) return;
      current.push_back(std::move(word));
      chunks.pop_back();
      return;
    }
    int64_t count = room;
    if (break_on_hyphens_ && width_of(word) > room) {  // behind the last hyphen that fits, where text stands before it
      const auto letters = to_code_points(word);
      const auto hyphen = letters.rfind(U'-', static_cast<size_t>(std::max<int64_t>(room - 1, 0)));
      const bool is_inside = hyphen != letters.npos && static_cast<int64_t>(hyphen) < room && hyphen > 0;
      const auto is_hyphen = [](char32_t c) { return c == U'-'; };
      if (is_inside && !std::all_of(letters.begin(), letters.begin() + static_cast<ptrdiff_t>(hyphen), is_hyphen)) {
        count = static_cast<int64_t>(hyphen) + 1;
      }
    }
    size_t end = 0;
    for (int64_t i = 0; i < count && end < word.size(); ++i) end += utf8_width(word[end]);
    current.push_back(word.substr(0, end));
    word.erase(0, end);
    if (word.empty()) chunks.pop_back();
  }

  int64_t width_;
  bool break_long_words_, break_on_hyphens_;
};

/// html.unescape for the entities that need no table.
std::string unescaped(const std::string& text) {
  static constexpr std::pair<std::string_view, const char*> kNames[] = {
      {"amp", "&"}, {"lt", "<"}, {"gt", ">"}, {"quot", "\""}, {"apos", "'"}, {"nbsp", "\u00a0"}};
  static const Regex entity("&(?:#([0-9]{1,7})|#[xX]([0-9a-fA-F]{1,6})|([a-zA-Z][a-zA-Z0-9]*));");
  std::string out;
  std::vector<Span> groups;
  size_t at = 0;
  while (entity.search(text, at, groups)) {
    out.append(text, at, groups[0].begin - at);
    const auto group = [&](size_t i) { return text.substr(groups[i].begin, groups[i].end - groups[i].begin); };
    if (groups[3].begin == std::string::npos) {
      const bool is_hexadecimal = groups[1].begin == std::string::npos;
      const auto code = std::strtoul(group(is_hexadecimal ? 2 : 1).c_str(), nullptr, is_hexadecimal ? 16 : 10);
      const bool is_character = code != 0 && code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF);
      append_utf8(out, is_character ? static_cast<char32_t>(code) : U'\uFFFD');
    } else {
      const auto name = group(3);
      const auto* found =
          std::find_if(std::begin(kNames), std::end(kNames), [&](const auto& e) { return e.first == name; });
      require(found != std::end(kNames), "striptags: the entity &", name, "; is not supported");
      out += found->second;
    }
    at = groups[0].end;
  }
  return out.append(text, at);
}

void remove_between(std::string& text, std::string_view begin, std::string_view end) {
  std::string out;
  size_t at = 0;
  for (;;) {
    const size_t start = text.find(begin, at);
    const size_t stop = start == text.npos ? text.npos : text.find(end, start);
    if (stop == text.npos) break;
    out.append(text, at, start - at);
    at = stop + end.size();
  }
  text = out.append(text, at);
}

}  // namespace

std::string html_escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

Value text_like(const Value& subject, std::string text) {
  return subject.is_markup() ? Value::markup(std::move(text)) : Value::string(std::move(text));
}

std::string escaped_text(const Value& value) { return value.is_markup() ? value.text() : html_escaped(to_text(value)); }

Value do_pprint(Interpreter&, const Value& subject, Arguments& arguments) {
  ArgumentReader("pprint", arguments).done();
  return Value::string(PrettyPrinter().print(subject));
}

Value do_indent(Interpreter&, const Value& subject, Arguments& arguments) {
  ArgumentReader reader("indent", arguments);
  const Value* width = reader.optional("width");
  const bool first = reader.boolean("first", false), blank = reader.boolean("blank", false);
  reader.done();
  const std::string indentation = width == nullptr           ? "    "
                                  : width->is(Kind::kString) ? width->text()
                                                             : repeated(" ", width->as_int());
  require(subject.is(Kind::kString), "unsupported operand type(s) for +=: '", type_name(subject), "' and 'str'");
  const auto lines = split_lines(subject.text() + "\n");
  std::string out;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += "\n";
    if (i == 0 ? first : blank || !lines[i].text().empty()) out += indentation;
    out += lines[i].text();
    require(out.size() <= kMaxTextBytes, "a text of more than ", kMaxTextBytes, " bytes");
  }
  return text_like(subject, std::move(out));
}

Value do_truncate(Interpreter&, const Value& subject, Arguments& arguments) {
  ArgumentReader reader("truncate", arguments);
  const int64_t length = reader.integer("length", 255);
  const bool kill_words = reader.boolean("killwords", false);
  const std::string end = reader.text("end", "...");
  const int64_t leeway = reader.integer("leeway", 5);
  reader.done();
  if (!subject.is(Kind::kString)) {
    require(length_of(subject) <= length + leeway, "'", type_name(subject), "' object has no attribute 'rsplit'");
    return subject;
  }
  const std::string text = subject.text();
  const auto end_length = static_cast<int64_t>(num_code_points(end));
  require(length >= end_length && leeway >= 0, "truncate: length shorter than its end, or a negative leeway");
  if (static_cast<int64_t>(num_code_points(text)) <= length + leeway) return text_like(subject, text);
  std::string cut = get_slice(Value::string(text), Value(), Value::integer(length - end_length), Value()).text();
  if (!kill_words && cut.rfind(' ') != cut.npos) cut.resize(cut.rfind(' '));
  return text_like(subject, cut + (subject.is_markup() ? html_escaped(end) : end));
}

Value do_wordwrap(Interpreter&, const Value& subject, Arguments& arguments) {
  ArgumentReader reader("wordwrap", arguments);
  const int64_t width = reader.integer("width", 79);
  const bool break_long_words = reader.boolean("break_long_words", true);
  const Value* separator = reader.optional("wrapstring");
  const bool break_on_hyphens = reader.boolean("break_on_hyphens", true);
  reader.done();
  require(width > 0, "wordwrap: invalid width ", width, " (must be > 0)");
  require(subject.is(Kind::kString), "'", type_name(subject), "' object has no attribute 'splitlines'");
  const Wrapper wrapper(width, break_long_words, break_on_hyphens);
  const std::string between = separator == nullptr || separator->is(Kind::kNone) ? "\n" : to_text(*separator);
  std::string out;
  bool first = true;
  for (const auto& line : split_lines(to_text(subject))) {
    const auto wrapped = wrapper.wrap(line.text());
    if (!std::exchange(first, false)) out += between;
    for (size_t i = 0; i < wrapped.size(); ++i) out += (i > 0 ? between : "") + wrapped[i];
    require(out.size() <= kMaxTextBytes, "a text of more than ", kMaxTextBytes, " bytes");
  }
  return Value::string(std::move(out));
}

Value do_filesizeformat(Interpreter&, const Value& subject, Arguments& arguments) {
  ArgumentReader reader("filesizeformat", arguments);
  const bool binary = reader.boolean("binary", false);
  reader.done();
  double bytes = subject.is_number() ? subject.as_double() : 0;
  if (subject.is(Kind::kString)) {
    char* end = nullptr;
    bytes = std::strtod(subject.text().c_str(), &end);
    require(!subject.text().empty() && *end == 0, "could not convert string to float: ", to_repr(subject));
  } else {
    require(subject.is_number(), "filesizeformat takes a number, not ", type_name(subject));
  }
  const double base = binary ? 1024 : 1000;
  if (bytes == 1) return Value::string("1 Byte");
  if (bytes < base) return Value::string(std::to_string(static_cast<int64_t>(bytes)) + " Bytes");
  constexpr std::array kPrefixes = {'k', 'M', 'G', 'T', 'P', 'E', 'Z', 'Y'};
  double unit = base * base;
  size_t i = 0;
  for (; i + 1 < kPrefixes.size() && bytes >= unit; ++i) unit *= base;
  char number[400];
  std::snprintf(number, sizeof number, "%.1f ", base * bytes / unit);
  const char prefix = binary && i == 0 ? 'K' : kPrefixes[i];
  return Value::string(std::string(number) + prefix + (binary ? "iB" : "B"));
}

Value do_striptags(Interpreter&, const Value& subject, Arguments& arguments) {
  ArgumentReader("striptags", arguments).done();
  auto text = to_text(subject);
  remove_between(text, "<!--", "-->");
  remove_between(text, "<", ">");
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    if (!is_space_python(next_code_point(text, at))) {
      out.append(text, begin, at - begin);
    } else if (!out.empty() && out.back() != ' ') {
      out += ' ';
    }
  }
  if (out.ends_with(' ')) out.pop_back();
  return Value::string(unescaped(out));
}

Value do_xmlattr(Interpreter&, const Value& subject, Arguments& arguments) {
  ArgumentReader reader("xmlattr", arguments);
  const bool space = reader.boolean("autospace", true);
  reader.done();
  require(subject.is(Kind::kDict), "xmlattr takes a dictionary, not ", type_name(subject));
  std::string out;
  for (const auto& [key, value] : subject.entries().values) {
    if (value.is(Kind::kNone) || value.is(Kind::kUndefined)) continue;
    require(key.is(Kind::kString), "expected string or bytes-like object, got '", type_name(key), "'");
    const auto name = to_text(key);
    require(name.find_first_of(" \t\n\v\f\r/>=") == name.npos, "Invalid character in attribute name: ", to_repr(key));
    out += (out.empty() ? "" : " ") + escaped_text(key) + "=\"" + escaped_text(value) + "\"";
  }
  return Value::string(space && !out.empty() ? " " + out : out);
}

}  // namespace troupe::jinja
