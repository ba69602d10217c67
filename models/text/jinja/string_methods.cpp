// Methods of strings. They count in characters and take keywords where Python does.
#include <algorithm>
#include <cstring>

#include "models/text/jinja/builtins.h"
#include "models/text/unicode.h"

namespace troupe::jinja {

bool is_space_python(char32_t c) { return is_white_space(c) || (c >= 0x1C && c <= 0x1F); }

namespace {

size_t find_text(const std::string& text, const std::string& part, size_t from) {
  charge(1 + (text.size() - std::min(from, text.size()) + part.size()) / 256);
  if (from > text.size()) return text.npos;
  if (part.empty()) return from;
  const void* found = memmem(text.data() + from, text.size() - from, part.data(), part.size());
  return found == nullptr ? text.npos : static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

size_t find_last(const std::string& text, const std::string& part, size_t end) {
  charge(1 + (text.size() + part.size()) / 64);
  if (part.size() > end) return text.npos;
  for (size_t at = end - part.size() + 1; at-- > 0;) {
    if (text.compare(at, part.size(), part) == 0) return at;
    charge(part.size() / 256);
  }
  return text.npos;
}

std::vector<Value> split_words(const std::string& text, int64_t max, bool from_right) {
  std::vector<std::pair<size_t, size_t>> words;
  size_t begin = text.npos;
  for (size_t at = 0; at < text.size();) {
    const size_t here = at;
    if (is_space_python(next_code_point(text, at))) {
      if (begin != text.npos) words.emplace_back(begin, here);
      begin = text.npos;
    } else if (begin == text.npos) {
      begin = here;
    }
  }
  if (begin != text.npos) words.emplace_back(begin, text.size());
  const auto parts = static_cast<size_t>(max) + 1;
  if (max >= 0 && words.size() > parts) {
    if (from_right) {  // the first piece reaches from the beginning (stripped) to the end of its last word
      const size_t merged = words.size() - parts;
      words[merged].first = words[0].first;
      words.erase(words.begin(), words.begin() + static_cast<ptrdiff_t>(merged));
      std::string head = text.substr(0, words[0].second);
      words[0].first = 0;
    } else {
      words.resize(parts);
      words.back().second = text.size();
    }
  }
  std::vector<Value> out;
  for (size_t i = 0; i < words.size(); ++i)
    out.push_back(Value::string(text.substr(words[i].first, words[i].second - words[i].first)));
  return out;
}

Value split(const std::string& text, Arguments& arguments, bool from_right) {
  ArgumentReader reader(from_right ? "rsplit" : "split", arguments);
  const Value* separator = reader.optional("sep");
  const int64_t max = reader.integer("maxsplit", -1);
  reader.done();
  if (separator == nullptr || separator->is(Kind::kNone)) return Value::list(split_words(text, max, from_right));
  if (separator->is(Kind::kUndefined)) fail_undefined(*separator);
  require(separator->is(Kind::kString), "must be str or None, not ", type_name(*separator));
  const std::string& part = separator->text();
  require(!part.empty(), "empty separator");
  std::vector<Value> out;
  if (from_right) {
    size_t end = text.size();
    for (int64_t left = max; left != 0; --left) {
      const size_t at = find_last(text, part, end);
      if (at == text.npos) break;
      out.push_back(Value::string(text.substr(at + part.size(), end - at - part.size())));
      end = at;
    }
    out.push_back(Value::string(text.substr(0, end)));
    std::reverse(out.begin(), out.end());
    return Value::list(std::move(out));
  }
  size_t begin = 0;
  for (int64_t left = max; left != 0; --left) {
    const size_t at = find_text(text, part, begin);
    if (at == text.npos) break;
    out.push_back(Value::string(text.substr(begin, at - begin)));
    begin = at + part.size();
  }
  out.push_back(Value::string(text.substr(begin)));
  return Value::list(std::move(out));
}

// startswith and endswith take one text or a tuple of them.
bool has_affix(const std::string& text, Arguments& arguments, bool at_end) {
  ArgumentReader reader(at_end ? "endswith" : "startswith", arguments);
  const Value& affix = reader.required(at_end ? "suffix" : "prefix");
  const int64_t start = reader.integer("start", 0);
  reader.done();
  std::string_view view = text;
  if (start > 0) {
    size_t at = 0;
    for (int64_t i = 0; i < start && at < view.size(); ++i) at += utf8_width(view[at]);
    view.remove_prefix(at);
  }
  const auto matches = [&](const Value& one) {
    if (one.is(Kind::kUndefined)) fail_undefined(one);
    require(one.is(Kind::kString), at_end ? "endswith" : "startswith", " first arg must be str or a tuple of str, not ",
            type_name(one));
    return at_end ? view.ends_with(one.text()) : view.starts_with(one.text());
  };
  if (affix.is(Kind::kSequence) && affix.items().kind == SequenceKind::kTuple) {
    return std::any_of(affix.items().values.begin(), affix.items().values.end(), matches);
  }
  return matches(affix);
}

int64_t find_index(const std::string& text, Arguments& arguments, bool last, bool must_exist) {
  ArgumentReader reader("find", arguments);
  const Value& part = reader.required("sub");
  require(part.is(Kind::kString), "must be str, not ", type_name(part));
  int64_t start = reader.integer("start", 0);
  int64_t stop = reader.integer("end", INT64_MAX);
  reader.done();
  const auto length = static_cast<int64_t>(num_code_points(text));
  if (start < 0) start = std::max<int64_t>(0, start + length);
  if (stop < 0) stop += length;
  stop = std::min(stop, length);
  size_t begin = 0, end = 0;
  for (int64_t i = 0; i < start && begin < text.size(); ++i) begin += utf8_width(text[begin]);
  for (int64_t i = 0; i < stop && end < text.size(); ++i) end += utf8_width(text[end]);
  size_t at = start <= length && start <= stop
                  ? (last ? find_last(text, part.text(), end) : find_text(text, part.text(), begin))
                  : text.npos;
  if (at != text.npos && (at < begin || at + part.text().size() > end)) at = text.npos;
  require(at != text.npos || !must_exist, "substring not found");
  return at == text.npos ? -1 : static_cast<int64_t>(num_code_points(std::string_view(text).substr(0, at)));
}

int64_t count_of(const std::string& text, const std::string& part) {
  if (part.empty()) return static_cast<int64_t>(num_code_points(text)) + 1;
  int64_t count = 0;
  for (size_t at = find_text(text, part, 0); at != text.npos; at = find_text(text, part, at + part.size())) ++count;
  return count;
}

Value partition(const std::string& text, Arguments& arguments, bool last) {
  ArgumentReader reader("partition", arguments);
  const std::string part = reader.required("sep").text();
  reader.done();
  require(!part.empty(), "empty separator");
  const size_t at = last ? find_last(text, part, text.size()) : find_text(text, part, 0);
  const auto piece = [](std::string piece) { return Value::string(std::move(piece)); };
  if (at == text.npos)
    return last ? Value::tuple({piece(""), piece(""), piece(text)}) : Value::tuple({piece(text), piece(""), piece("")});
  return Value::tuple({piece(text.substr(0, at)), piece(part), piece(text.substr(at + part.size()))});
}

// True where the text is not empty and the predicate holds for all of it.
template <class F>
bool all_characters(const std::string& text, F predicate) {
  for (size_t at = 0; at < text.size();) {
    if (!predicate(next_code_point(text, at))) return false;
  }
  return !text.empty();
}

bool has_case(const std::string& text, bool is_upper_wanted) {
  bool found = false;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    if (is_upper_wanted ? is_lower(c) : is_upper(c)) return false;
    found |= is_upper_wanted ? is_upper(c) : is_lower(c);
  }
  return found;
}

// Python's title: every letter behind a non-letter is upper case, the others lower.
std::string titled(const std::string& text) {
  std::string out;
  bool inside = false;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    inside ? append_lower(out, c) : append_utf8(out, to_title(c));
    inside = is_letter(c);
  }
  return out;
}

std::string swapped_case(const std::string& text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    is_upper(c) ? append_lower(out, c) : append_upper(out, c);
  }
  return out;
}

std::string expanded_tabs(const std::string& text, int64_t size) {
  std::string out;
  int64_t column = 0;
  for (const char c : text) {
    if (c == '\t') {
      const int64_t count = size > 0 ? size - column % size : 0;
      out.append(static_cast<size_t>(count), ' ');
      column += count;
    } else {
      out += c;
      column = c == '\n' ? 0 : column + 1;
    }
  }
  return out;
}

using Method = Value (*)(const std::string&, Arguments&);
struct Entry {
  std::string_view name;
  Method method;
};

// A method without arguments that gives a text.
template <std::string (*F)(const std::string&)>
Value text_method(const std::string& text, Arguments& arguments) {
  ArgumentReader("method", arguments).done();
  return Value::string(F(text));
}
template <bool Left, bool Right>
Value strip_method(const std::string& text, Arguments& arguments) {
  ArgumentReader reader("strip", arguments);
  const Value* characters = reader.optional("chars");
  reader.done();
  return Value::string(stripped(text, characters, Left, Right));
}
template <char Align>
Value pad_method(const std::string& text, Arguments& arguments) {
  ArgumentReader reader("ljust", arguments);
  const int64_t width = reader.integer("width", 0);
  const std::string fill = reader.text("fillchar", " ");
  reader.done();
  require(num_code_points(fill) == 1, "The fill character must be exactly one character long");
  size_t at = 0;
  return Value::string(padded(text, width, next_code_point(fill, at), Align));
}
template <bool Last, bool MustExist>
Value find_method_of(const std::string& text, Arguments& arguments) {
  return Value::integer(find_index(text, arguments, Last, MustExist));
}
template <bool (*F)(char32_t)>
Value all_method(const std::string& text, Arguments&) {
  return Value::boolean(all_characters(text, F));
}
bool is_alphanumeric(char32_t c) { return is_letter(c) || is_numeric(c); }
bool is_digit(char32_t c) { return is_numeric(c) && !(c >= 0xBC && c <= 0xBE) && !(c >= 0x2150 && c <= 0x218B); }

// Markup escapes what its methods take in, and gives markup.
Value markup_of(Value value) {
  if (value.is(Kind::kString)) return Value::markup(value.text());
  if (!value.is(Kind::kSequence)) return value;
  std::vector<Value> items;
  for (const auto& item : value.items().values) items.push_back(markup_of(item));
  return Value::sequence(std::move(items), value.items().kind);
}
void escape_arguments(std::string_view method, Arguments& arguments) {
  const auto escape = [](Value& value) {
    if (value.is(Kind::kString)) value = Value::string(escaped_text(value));
  };
  const bool is_join = method == "join";
  if (is_join && !arguments.positional.empty()) {
    std::vector<Value> items;
    for (const auto& item : iterate(arguments.positional[0])) items.push_back(Value::string(escaped_text(item)));
    arguments.positional[0] = Value::list(std::move(items));
  }
  const bool takes_second = method == "replace" || method == "ljust" || method == "rjust" || method == "center";
  if (takes_second && arguments.positional.size() > 1) escape(arguments.positional[1]);
  for (auto& [name, value] : arguments.keyword) {
    if (takes_second && (name == "new" || name == "fillchar")) escape(value);
  }
}

Value join_method(const std::string& text, Arguments& arguments) {
  ArgumentReader reader("join", arguments);
  const auto items = iterate(reader.required("iterable"));
  reader.done();
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    require(items[i].is(Kind::kString), "sequence item ", i, ": expected str instance, ", type_name(items[i]),
            " found");
    if (i > 0) out += text;
    out += items[i].text();
    require(out.size() <= kMaxTextBytes, "a text of more than ", kMaxTextBytes, " bytes");
  }
  return Value::string(std::move(out));
}

Value replace_method(const std::string& text, Arguments& arguments) {
  ArgumentReader reader("replace", arguments);
  const Value &from = reader.required("old"), &to = reader.required("new");
  const int64_t count = reader.integer("count", -1);
  reader.done();
  for (const Value* one : {&from, &to}) {
    if (one->is(Kind::kUndefined)) fail_undefined(*one);
    require(one->is(Kind::kString), "replace() argument must be str, not ", type_name(*one));
  }
  return Value::string(replaced(text, from.text(), to.text(), count));
}

template <bool Prefix>
Value remove_affix(const std::string& text, Arguments& arguments) {
  ArgumentReader reader("removeprefix", arguments);
  const std::string affix = reader.text("affix", "");
  reader.done();
  const bool has = Prefix ? text.starts_with(affix) : text.ends_with(affix);
  if (!has) return Value::string(text);
  return Value::string(Prefix ? text.substr(affix.size()) : text.substr(0, text.size() - affix.size()));
}

constexpr Entry kMethods[] = {
    {"capitalize", text_method<capitalized>},
    {"casefold", text_method<lower>},
    {"center", pad_method<'^'>},
    {"count",
     [](const std::string& text, Arguments& arguments) {
       ArgumentReader reader("count", arguments);
       const std::string part = reader.required("sub").text();
       reader.done();
       return Value::integer(count_of(text, part));
     }},
    {"endswith",
     [](const std::string& text, Arguments& arguments) { return Value::boolean(has_affix(text, arguments, true)); }},
    {"expandtabs",
     [](const std::string& text, Arguments& arguments) {
       ArgumentReader reader("expandtabs", arguments);
       const int64_t size = reader.integer("tabsize", 8);
       require(size <= 1000, "expandtabs: tabsize over 1000");
       return Value::string(expanded_tabs(text, size));
     }},
    {"find", find_method_of<false, false>},
    {"format",
     [](const std::string& text, Arguments& arguments) { return Value::string(brace_format(text, arguments)); }},
    {"index", find_method_of<false, true>},
    {"isalnum", all_method<is_alphanumeric>},
    {"isalpha", all_method<is_letter>},
    {"isascii",
     [](const std::string& text, Arguments&) { return Value::boolean(num_code_points(text) == text.size()); }},
    {"isdecimal", all_method<is_digit>},
    {"isdigit", all_method<is_digit>},
    {"islower", [](const std::string& text, Arguments&) { return Value::boolean(has_case(text, false)); }},
    {"isnumeric", all_method<is_numeric>},
    {"isspace", all_method<is_space_python>},
    {"istitle",
     [](const std::string& text, Arguments&) { return Value::boolean(titled(text) == text && lower(text) != text); }},
    {"isupper", [](const std::string& text, Arguments&) { return Value::boolean(has_case(text, true)); }},
    {"join", join_method},
    {"ljust", pad_method<'<'>},
    {"lower", text_method<lower>},
    {"lstrip", strip_method<true, false>},
    {"partition", [](const std::string& text, Arguments& arguments) { return partition(text, arguments, false); }},
    {"removeprefix", remove_affix<true>},
    {"removesuffix", remove_affix<false>},
    {"replace", replace_method},
    {"rfind", find_method_of<true, false>},
    {"rindex", find_method_of<true, true>},
    {"rjust", pad_method<'>'>},
    {"rpartition", [](const std::string& text, Arguments& arguments) { return partition(text, arguments, true); }},
    {"rsplit", [](const std::string& text, Arguments& arguments) { return split(text, arguments, true); }},
    {"rstrip", strip_method<false, true>},
    {"split", [](const std::string& text, Arguments& arguments) { return split(text, arguments, false); }},
    {"splitlines",
     [](const std::string& text, Arguments& arguments) {
       ArgumentReader reader("splitlines", arguments);
       const bool keep = reader.boolean("keepends", false);
       reader.done();
       return Value::list(split_lines(text, keep));
     }},
    {"startswith",
     [](const std::string& text, Arguments& arguments) { return Value::boolean(has_affix(text, arguments, false)); }},
    {"strip", strip_method<true, true>},
    {"swapcase", text_method<swapped_case>},
    {"title", text_method<titled>},
    {"upper", text_method<upper>},
    {"zfill",
     [](const std::string& text, Arguments& arguments) {
       ArgumentReader reader("zfill", arguments);
       const int64_t width = reader.integer("width", 0);
       const bool has_sign = text.starts_with("-") || text.starts_with("+");
       const std::string digits = padded(has_sign ? text.substr(1) : text, width - has_sign, U'0', '>');
       return Value::string(has_sign ? text.substr(0, 1) + digits : digits);
     }},
};

}  // namespace

std::optional<Value> find_string_method(const Value& subject, std::string_view name) {
  const auto* entry =
      std::find_if(std::begin(kMethods), std::end(kMethods), [&](const Entry& each) { return each.name == name; });
  if (entry == std::end(kMethods)) return std::nullopt;
  if (subject.is_markup()) {
    return Value::callable(std::string(name), [subject, entry](Interpreter&, Arguments& arguments) {
      if (entry->name == "format") return Value::markup(brace_format(subject.text(), arguments, /*escape=*/true));
      escape_arguments(entry->name, arguments);
      return markup_of(entry->method(subject.text(), arguments));
    });
  }
  return Value::callable(std::string(name), [subject, method = entry->method](Interpreter&, Arguments& arguments) {
    return method(subject.text(), arguments);
  });
}

std::string stripped(const std::string& text, const Value* characters, bool left, bool right) {
  std::u32string set;
  const bool by_set = characters != nullptr && !characters->is(Kind::kNone);
  if (by_set) {
    if (characters->is(Kind::kUndefined)) fail_undefined(*characters);
    require(characters->is(Kind::kString), "strip arg must be None or str, not ", type_name(*characters));
    set = to_code_points(characters->text());
  }
  size_t begin = text.size(), end = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t here = at;
    const char32_t c = next_code_point(text, at);
    if (by_set) charge(set.size() / 64);
    if (by_set ? set.find(c) != set.npos : is_space_python(c)) continue;
    begin = std::min(begin, here);
    end = at;
  }
  if (end == 0) return left || right ? std::string() : text;
  if (!left) begin = 0;
  if (!right) end = text.size();
  return text.substr(begin, end - begin);
}

std::vector<Value> split_lines(const std::string& text, bool keep_ends) {
  std::vector<Value> out;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t here = at;
    const char32_t c = next_code_point(text, at);
    const bool ends = (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
    if (!ends) continue;
    if (c == '\r' && at < text.size() && text[at] == '\n') ++at;
    out.push_back(Value::string(text.substr(begin, (keep_ends ? at : here) - begin)));
    begin = at;
  }
  if (begin < text.size()) out.push_back(Value::string(text.substr(begin)));
  return out;
}

std::string replaced(const std::string& text, const std::string& from, const std::string& to, int64_t count) {
  std::string out;
  const auto check = [&] { require(out.size() <= kMaxTextBytes, "a text of more than ", kMaxTextBytes, " bytes"); };
  size_t at = 0;
  if (from.empty()) {  // between all characters
    for (; at < text.size() && count != 0; --count) {
      const size_t width = utf8_width(text[at]);
      out.append(to).append(text, at, width);
      at += width;
      check();
    }
    if (at >= text.size() && count != 0) out += to;
    return out.append(text, at);
  }
  for (size_t found = find_text(text, from, 0); found != text.npos && count != 0;
       found = find_text(text, from, at), --count) {
    out.append(text, at, found - at).append(to);
    at = found + from.size();
    check();
  }
  return out.append(text, at);
}

std::string upper(const std::string& text) {
  std::string out;
  for (size_t at = 0; at < text.size();) append_upper(out, next_code_point(text, at));
  return out;
}

std::string lower(const std::string& text) {
  std::string out;
  for (size_t at = 0; at < text.size();) append_lower(out, next_code_point(text, at));
  return out;
}

std::string capitalized(const std::string& text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const bool first = at == 0;
    const char32_t c = next_code_point(text, at);
    first ? append_utf8(out, to_title(c)) : append_lower(out, c);
  }
  return out;
}

std::string repeated(const std::string& text, int64_t count) {
  if (count <= 0 || text.empty()) return {};
  require(static_cast<uint64_t>(count) <= kMaxTextBytes / text.size(), "a text of more than ", kMaxTextBytes, " bytes");
  charge(static_cast<uint64_t>(count) * text.size() / 512);
  std::string out;
  out.reserve(text.size() * static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) out += text;
  return out;
}

std::string padded(const std::string& text, int64_t width, char32_t fill, char align) {
  const auto length = static_cast<int64_t>(num_code_points(text));
  if (width <= length) return text;
  std::string one;
  append_utf8(one, fill);
  const int64_t missing = width - length;
  // Python's str.center puts the odd one on the left for even lengths of the field.
  const int64_t left = align == '<' ? 0 : align == '>' ? missing : missing / 2 + (missing & width & 1);
  return repeated(one, left) + text + repeated(one, missing - left);
}

}  // namespace troupe::jinja
