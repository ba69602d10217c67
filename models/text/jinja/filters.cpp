// Filters. Where one takes a function by name (map, select), it looks the name up at run time as Jinja does.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "models/text/jinja/builtins.h"
#include "models/text/jinja/interpreter.h"
#include "models/text/unicode.h"

namespace troupe::jinja {
namespace {

Value generator(std::vector<Value> items) {
  return Value::sequence(std::move(items), SequenceKind::kGenerator, "<generator object>");
}

// Texts compare without case unless that is asked for.
Value sort_key(const Value& value, bool case_sensitive) {
  return !case_sensitive && value.is(Kind::kString) ? Value::string(lower(value.text())) : value;
}

std::vector<Value> pairs_of(const DictObject& dict) {
  std::vector<Value> out;
  for (const auto& [key, value] : dict.values) out.push_back(Value::tuple({key, value}));
  return out;
}

Value by_attribute(const Value& item, const Value* attribute) {
  return attribute == nullptr || attribute->is(Kind::kNone) ? item : get_path(item, *attribute);
}

Value do_default(Interpreter&, const Value& subject, Arguments& arguments) {
  ArgumentReader reader("default", arguments);
  const Value* fallback = reader.optional("default_value");
  const bool also_false = reader.boolean("boolean", false);
  reader.done();
  const bool missing = subject.is(Kind::kUndefined) || (also_false && !is_true(subject));
  return !missing ? subject : fallback != nullptr ? *fallback : Value::string("");
}

Value do_join(Interpreter&, const Value& subject, Arguments& arguments) {
  ArgumentReader reader("join", arguments);
  const std::string separator = reader.text("d", "");
  const Value* attribute = reader.optional("attribute");
  reader.done();
  std::string out;
  bool first = true;
  for (const auto& item : iterate(subject)) {
    if (!std::exchange(first, false)) out += separator;
    out += to_text(by_attribute(item, attribute));
    require(out.size() <= kMaxTextBytes, "a text of more than ", kMaxTextBytes, " bytes");
  }
  return Value::string(std::move(out));
}

Value do_int(Interpreter&, const Value& subject, Arguments& arguments) {
  ArgumentReader reader("int", arguments);
  const int64_t fallback = reader.integer("default", 0);
  const auto base = static_cast<int>(reader.integer("base", 10));
  reader.done();
  if (subject.is(Kind::kUndefined)) fail_undefined(subject);
  if (subject.is_integral()) return Value::integer(subject.as_int());
  double number = 0;
  if (subject.is(Kind::kFloat)) {
    number = subject.as_double();
  } else if (subject.is(Kind::kString)) {
    std::string text = stripped(subject.text(), nullptr, true, true);
    std::erase(text, '_');
    char* end = nullptr;
    errno = 0;
    const int64_t integer = std::strtoll(text.c_str(), &end, base == 16 || base == 8 || base == 2 ? base : 10);
    if (!text.empty() && *end == 0 && errno == 0) return Value::integer(integer);
    number = std::strtod(text.c_str(), &end);
    if (text.empty() || *end != 0 || text.find_first_of("xX") != text.npos) return Value::integer(fallback);
  } else {
    return Value::integer(fallback);
  }
  return std::isfinite(number) && std::abs(number) < 9e18 ? Value::integer(static_cast<int64_t>(number))
                                                          : Value::integer(fallback);
}

Value do_float(Interpreter&, const Value& subject, Arguments& arguments) {
  ArgumentReader reader("float", arguments);
  const Value* fallback = reader.optional("default");
  reader.done();
  if (subject.is(Kind::kUndefined)) fail_undefined(subject);
  if (subject.is_number()) return Value::number(subject.as_double());
  if (subject.is(Kind::kString)) {
    const std::string text = stripped(subject.text(), nullptr, true, true);
    char* end = nullptr;
    const double number = std::strtod(text.c_str(), &end);
    if (!text.empty() && *end == 0 && text.find_first_of("xX") == text.npos) return Value::number(number);
  }
  return fallback != nullptr ? *fallback : Value::number(0);
}

Value do_round(Interpreter&, const Value& subject, Arguments& arguments) {
  ArgumentReader reader("round", arguments);
  const int64_t precision = reader.integer("precision", 0);
  const std::string method = reader.text("method", "common");
  reader.done();
  if (subject.is(Kind::kUndefined)) fail_undefined(subject);
  require(subject.is_number(), "round: not a number");
  require(method == "common" || method == "ceil" || method == "floor", "method must be common, ceil or floor");
  require(std::abs(precision) <= 300, "round: precision over 300");
  const double value = subject.as_double();
  if (method == "common") {
    if (subject.is_integral() && precision >= 0) return Value::integer(subject.as_int());
    if (precision >= 0) {  // decimal rounding of the exact binary value, as Python's
      char buffer[700];
      std::snprintf(buffer, sizeof buffer, "%.*f", static_cast<int>(precision), value);
      return Value::number(std::strtod(buffer, nullptr));
    }
    const double scale = std::pow(10.0, static_cast<double>(-precision));
    const double rounded = std::nearbyint(value / scale) * scale;
    return subject.is_integral() ? Value::integer(static_cast<int64_t>(rounded)) : Value::number(rounded);
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  return Value::number((method == "ceil" ? std::ceil(value * scale) : std::floor(value * scale)) / scale);
}

Value do_tojson(Interpreter&, const Value& subject, Arguments& arguments) {
  ArgumentReader reader("tojson", arguments);
  JsonStyle style;
  style.ensure_ascii = reader.boolean("ensure_ascii", false);
  const Value* indent = reader.optional("indent");
  const Value* separators = reader.optional("separators");
  style.sort_keys = reader.boolean("sort_keys", false);
  reader.done();
  if (indent != nullptr && !indent->is(Kind::kNone)) {
    style.indent = 1;
    style.indent_text =
        indent->is(Kind::kString) ? indent->text() : repeated(" ", std::min<int64_t>(indent->as_int(), 100));
    style.item_separator = ",";
  }
  if (separators != nullptr && !separators->is(Kind::kNone)) {
    const auto pair = iterate(*separators);
    require(pair.size() == 2, "tojson: separators must be a pair");
    style.item_separator = to_text(pair[0]);
    style.key_separator = to_text(pair[1]);
  }
  if (subject.is(Kind::kUndefined)) fail_undefined(subject);
  return Value::string(to_json(subject, style));
}

Value do_map(Interpreter& interpreter, const Value& subject, Arguments& arguments) {
  if (!is_true(subject)) return generator({});  // as Jinja has it, also for what cannot be gone through
  std::vector<Value> out;
  if (arguments.positional.empty()) {
    ArgumentReader reader("map", arguments);
    const Value *attribute = nullptr, *fallback = nullptr;
    for (const auto& [name, value] : arguments.keyword) {
      require(name == "attribute" || name == "default", "map: unexpected keyword argument '", name, "'");
      (name == "attribute" ? attribute : fallback) = &value;
    }
    require(attribute != nullptr, "map requires a filter argument");
    for (const auto& item : iterate(subject)) {
      Value value = get_path(item, *attribute);
      out.push_back(value.is(Kind::kUndefined) && fallback != nullptr ? *fallback : std::move(value));
    }
    return generator(std::move(out));
  }
  const std::string name = to_text(arguments.positional[0]);
  for (const auto& item : iterate(subject)) {
    Arguments rest{{arguments.positional.begin() + 1, arguments.positional.end()}, arguments.keyword};
    out.push_back(apply_filter(interpreter, name, item, rest));
  }
  return generator(std::move(out));
}

template <bool WithAttribute, bool Wanted>
Value do_select(Interpreter& interpreter, const Value& subject, Arguments& arguments) {
  if (!is_true(subject)) return generator({});
  const auto& given = arguments.positional;
  require(!WithAttribute || !given.empty(), "selectattr: the attribute is missing");
  const size_t test_at = WithAttribute ? 1 : 0;
  std::vector<Value> out;
  for (const auto& item : iterate(subject)) {
    const Value value = WithAttribute ? get_path(item, given[0]) : item;
    bool holds = false;
    if (given.size() > test_at) {
      Arguments rest{{given.begin() + static_cast<ptrdiff_t>(test_at) + 1, given.end()}, arguments.keyword};
      holds = apply_test(interpreter, to_text(given[test_at]), value, rest);
    } else {
      holds = is_true(value);
    }
    if (holds == Wanted) out.push_back(item);
  }
  return generator(std::move(out));
}

// The key by which sort orders: of "a,b" the values of both attributes.
Value sort_keys(const Value& item, const Value* attribute, bool case_sensitive) {
  const bool several =
      attribute != nullptr && attribute->is(Kind::kString) && attribute->text().find(',') != std::string::npos;
  if (!several) return sort_key(by_attribute(item, attribute), case_sensitive);
  std::vector<Value> keys;
  for (size_t begin = 0; begin <= attribute->text().size();) {
    const size_t end = std::min(attribute->text().find(',', begin), attribute->text().size());
    keys.push_back(
        sort_key(get_path(item, Value::string(attribute->text().substr(begin, end - begin))), case_sensitive));
    begin = end + 1;
  }
  return Value::list(std::move(keys));
}

Value do_sort(Interpreter&, const Value& subject, Arguments& arguments) {
  ArgumentReader reader("sort", arguments);
  const bool reverse = reader.boolean("reverse", false), case_sensitive = reader.boolean("case_sensitive", false);
  const Value* attribute = reader.optional("attribute");
  reader.done();
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& item : iterate(subject)) keyed.emplace_back(sort_keys(item, attribute, case_sensitive), item);
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return reverse ? less(b.first, a.first) : less(a.first, b.first);
  });
  std::vector<Value> out;
  for (auto& entry : keyed) out.push_back(std::move(entry.second));
  return Value::list(std::move(out));
}

Value do_dictsort(Interpreter&, const Value& subject, Arguments& arguments) {
  ArgumentReader reader("dictsort", arguments);
  const bool case_sensitive = reader.boolean("case_sensitive", false);
  const std::string by = reader.text("by", "key");
  const bool reverse = reader.boolean("reverse", false);
  reader.done();
  require(by == "key" || by == "value", "You can only sort by either \"key\" or \"value\"");
  require(subject.is(Kind::kDict), "dictsort: not a dictionary");
  auto entries = subject.entries().values;
  const auto key = [&](const auto& entry) {
    return sort_key(by == "key" ? entry.first : entry.second, case_sensitive);
  };
  std::stable_sort(entries.begin(), entries.end(),
                   [&](const auto& a, const auto& b) { return reverse ? less(key(b), key(a)) : less(key(a), key(b)); });
  std::vector<Value> out;
  for (auto& [name, value] : entries) out.push_back(Value::tuple({name, value}));
  return Value::list(std::move(out));
}

Value do_unique(Interpreter&, const Value& subject, Arguments& arguments) {
  ArgumentReader reader("unique", arguments);
  const bool case_sensitive = reader.boolean("case_sensitive", false);
  const Value* attribute = reader.optional("attribute");
  reader.done();
  std::vector<Value> out, seen;
  for (const auto& item : iterate(subject)) {
    const Value key = sort_key(by_attribute(item, attribute), case_sensitive);
    require_hashable(key);
    if (std::any_of(seen.begin(), seen.end(), [&](const Value& each) { return equal(each, key); })) continue;
    seen.push_back(key);
    out.push_back(item);
  }
  return generator(std::move(out));
}

template <bool Largest>
Value do_extreme(Interpreter&, const Value& subject, Arguments& arguments) {
  ArgumentReader reader(Largest ? "max" : "min", arguments);
  const bool case_sensitive = reader.boolean("case_sensitive", false);
  const Value* attribute = reader.optional("attribute");
  reader.done();
  Value best = Value::undefined("No aggregated item, sequence was empty."), best_key;
  bool first = true;
  for (const auto& item : iterate(subject)) {
    const Value key = sort_key(by_attribute(item, attribute), case_sensitive);
    if (std::exchange(first, false) || (Largest ? less(best_key, key) : less(key, best_key))) {
      best = item;
      best_key = key;
    }
  }
  return best;
}

Value do_groupby(Interpreter&, const Value& subject, Arguments& arguments) {
  ArgumentReader reader("groupby", arguments);
  const Value& attribute = reader.required("attribute");
  const Value* fallback = reader.optional("default");
  const bool case_sensitive = reader.boolean("case_sensitive", false);
  reader.done();
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& item : iterate(subject)) {
    Value key = get_path(item, attribute);
    if (key.is(Kind::kUndefined) && fallback != nullptr) key = *fallback;
    keyed.emplace_back(key, item);
  }
  const auto key = [&](const auto& entry) { return sort_key(entry.first, case_sensitive); };
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) { return less(key(a), key(b)); });
  std::vector<Value> out;
  for (size_t i = 0; i < keyed.size();) {
    std::vector<Value> group;
    size_t end = i;
    while (end < keyed.size() && equal(key(keyed[end]), key(keyed[i]))) group.push_back(keyed[end++].second);
    out.push_back(Value::sequence({keyed[i].first, Value::list(std::move(group))}, SequenceKind::kTuple, "group"));
    i = end;
  }
  return Value::list(std::move(out));
}

Value do_sum(Interpreter&, const Value& subject, Arguments& arguments) {
  ArgumentReader reader("sum", arguments);
  const Value* attribute = reader.optional("attribute");
  const Value* start = reader.optional("start");
  reader.done();
  Value total = start != nullptr ? *start : Value::integer(0);
  for (const auto& item : iterate(subject)) total = binary(Operator::kAdd, total, by_attribute(item, attribute));
  return total;
}

Value do_batch(Interpreter&, const Value& subject, Arguments& arguments) {
  ArgumentReader reader("batch", arguments);
  const int64_t size = reader.integer("linecount", 1);
  const Value* fill = reader.optional("fill_with");
  reader.done();
  require(size > 0 && size <= 100000, "batch: the size must be in [1, 100000]");
  std::vector<Value> out, line;
  for (const auto& item : iterate(subject)) {
    if (static_cast<int64_t>(line.size()) == size) out.push_back(Value::list(std::exchange(line, {})));
    line.push_back(item);
  }
  if (!line.empty()) {
    if (fill != nullptr && !fill->is(Kind::kNone)) line.resize(static_cast<size_t>(size), *fill);
    out.push_back(Value::list(std::move(line)));
  }
  return generator(std::move(out));
}

Value do_slice(Interpreter&, const Value& subject, Arguments& arguments) {
  ArgumentReader reader("slice", arguments);
  const int64_t count = reader.integer("slices", 0);
  const Value* fill = reader.optional("fill_with");
  reader.done();
  require(count > 0 && count <= 100000, "slice: the number of slices must be in [1, 100000]");
  const auto items = iterate(subject);
  const size_t size = items.size() / static_cast<size_t>(count), longer = items.size() % static_cast<size_t>(count);
  std::vector<Value> out;
  size_t at = 0;
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    const size_t end = at + size + (i < longer ? 1 : 0);
    std::vector<Value> slice(items.begin() + static_cast<ptrdiff_t>(at), items.begin() + static_cast<ptrdiff_t>(end));
    if (fill != nullptr && !fill->is(Kind::kNone) && i >= longer) slice.push_back(*fill);
    out.push_back(Value::list(std::move(slice)));
    at = end;
  }
  return generator(std::move(out));
}

Value do_urlencode(Interpreter&, const Value& subject, Arguments&) {
  const auto quoted = [](const std::string& text, bool in_query) {
    constexpr char kDigits[] = "0123456789ABCDEF";
    std::string out;
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      const bool kept =
          byte < 128 && (std::isalnum(byte) != 0 || std::string_view("_.-~").find(c) != std::string::npos);
      if (kept || (c == '/' && !in_query)) {
        out += c;
      } else if (c == ' ' && in_query) {
        out += '+';
      } else {
        out += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
      }
    }
    return out;
  };
  if (!subject.is(Kind::kDict) && !subject.is(Kind::kSequence)) return Value::string(quoted(to_text(subject), false));
  std::string out;
  for (const auto& item : subject.is(Kind::kDict) ? pairs_of(subject.entries()) : iterate(subject)) {
    const auto pair = iterate(item);
    require(pair.size() == 2, "urlencode takes a text, a dictionary or pairs");
    out += (out.empty() ? "" : "&") + quoted(to_text(pair[0]), true) + "=" + quoted(to_text(pair[1]), true);
  }
  return Value::string(std::move(out));
}

Value do_first(Interpreter&, const Value& subject, Arguments&) {
  const auto items = iterate(subject);
  return items.empty() ? Value::undefined("No first item, sequence was empty.") : items.front();
}

Value do_last(Interpreter&, const Value& subject, Arguments&) {
  const bool is_generator = subject.is(Kind::kSequence) && subject.items().kind == SequenceKind::kGenerator;
  require(!is_generator, "'generator' object is not reversible");
  const auto items = iterate(subject);
  return items.empty()         ? Value::undefined("No last item, sequence was empty.")
         : subject.is_markup() ? Value::markup(items.back().text())
                               : items.back();
}

Value do_reverse(Interpreter&, const Value& subject, Arguments&) {
  auto items = iterate(subject);
  std::reverse(items.begin(), items.end());
  if (!subject.is(Kind::kString)) return generator(std::move(items));
  std::string out;
  for (const auto& item : items) out += item.text();
  return text_like(subject, std::move(out));
}

Value do_replace(Interpreter&, const Value& subject, Arguments& arguments) {
  ArgumentReader reader("replace", arguments);
  const std::string from = to_text(reader.required("old")), to = to_text(reader.required("new"));
  const int64_t count = reader.integer("count", -1);
  reader.done();
  return Value::string(replaced(to_text(subject), from, to, count));
}

Value do_trim(Interpreter&, const Value& subject, Arguments& arguments) {
  ArgumentReader reader("trim", arguments);
  const Value* characters = reader.optional("chars");
  reader.done();
  return text_like(subject, stripped(to_text(subject), characters, true, true));
}

Value do_title(Interpreter&, const Value& subject, Arguments&) {
  const std::string text = to_text(subject);
  std::string out;
  bool begins = true;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    begins ? append_upper(out, c) : append_lower(out, c);
    begins = c == '-' || c == '(' || c == '{' || c == '[' || c == '<' || is_space_python(c);
  }
  return Value::string(std::move(out));
}

Value do_escape(Interpreter&, const Value& subject, Arguments&) { return Value::markup(escaped_text(subject)); }

Value do_string(Interpreter&, const Value& subject, Arguments&) {
  return subject.is(Kind::kString) ? subject : Value::string(to_text(subject));
}

template <std::string (*F)(const std::string&)>
Value do_text(Interpreter&, const Value& subject, Arguments&) {
  return text_like(subject, F(to_text(subject)));
}

Value do_random(Interpreter&, const Value& subject, Arguments&) {
  static thread_local std::minstd_rand generator(std::random_device{}());
  const bool is_generator = subject.is(Kind::kSequence) && subject.items().kind >= SequenceKind::kGenerator;
  require(!is_generator && !subject.is(Kind::kDict), "random takes a list or a text, not ", type_name(subject));
  const auto count = length_of(subject);
  if (count == 0) return Value::undefined("No random item, sequence was empty.");
  return get_item(subject, Value::integer(static_cast<int64_t>(generator() % static_cast<uint64_t>(count))));
}

Value do_abs(Interpreter&, const Value& subject, Arguments&) {
  if (subject.is(Kind::kUndefined)) fail_undefined(subject);
  require(subject.is_number(), "bad operand type for abs(): '", type_name(subject), "'");
  if (subject.is(Kind::kFloat)) return Value::number(std::abs(subject.as_double()));
  return subject.as_int() < 0 ? binary(Operator::kSubtract, Value::integer(0), subject)
                              : Value::integer(subject.as_int());
}

Value do_items(Interpreter& interpreter, const Value& subject, Arguments&) {
  if (subject.is(Kind::kUndefined)) return generator({});
  require(subject.is(Kind::kDict), "Can only get item pairs from a mapping.");
  Arguments none;
  return generator(iterate(interpreter.call(*find_method(subject, "items"), none)));
}

struct Entry {
  std::string_view name;
  Filter filter;
};
constexpr Entry kFilters[] = {
    {"abs", do_abs},
    {"attr",
     [](Interpreter&, const Value& subject, Arguments& arguments) {
       return get_own_attribute(subject, to_text(ArgumentReader("attr", arguments).required("name")));
     }},
    {"batch", do_batch},
    {"capitalize", do_text<capitalized>},
    {"center",
     [](Interpreter&, const Value& subject, Arguments& arguments) {
       return text_like(subject,
                        padded(to_text(subject), ArgumentReader("center", arguments).integer("width", 80), U' ', '^'));
     }},
    {"count", [](Interpreter&, const Value& subject, Arguments&) { return Value::integer(length_of(subject)); }},
    {"d", do_default},
    {"default", do_default},
    {"dictsort", do_dictsort},
    {"e", do_escape},
    {"escape", do_escape},
    {"filesizeformat", do_filesizeformat},
    {"first", do_first},
    {"float", do_float},
    {"forceescape",
     [](Interpreter&, const Value& subject, Arguments&) { return Value::markup(html_escaped(to_text(subject))); }},
    {"format",
     [](Interpreter&, const Value& subject, Arguments& arguments) {
       require(arguments.keyword.empty() || arguments.positional.empty(),
               "can't handle positional and keyword arguments at the same time");
       std::vector<std::pair<Value, Value>> named;
       for (const auto& [name, value] : arguments.keyword) named.emplace_back(Value::string(name), value);
       return text_like(
           subject, percent_format(to_text(subject),
                                   named.empty() ? Value::tuple(arguments.positional) : Value::dict(std::move(named)),
                                   subject.is_markup()));
     }},
    {"groupby", do_groupby},
    {"indent", do_indent},
    {"int", do_int},
    {"items", do_items},
    {"join", do_join},
    {"last", do_last},
    {"length", [](Interpreter&, const Value& subject, Arguments&) { return Value::integer(length_of(subject)); }},
    {"list", [](Interpreter&, const Value& subject, Arguments&) { return Value::list(iterate(subject)); }},
    {"lower", do_text<lower>},
    {"map", do_map},
    {"max", do_extreme<true>},
    {"min", do_extreme<false>},
    {"pprint", do_pprint},
    {"random", do_random},
    {"reject", do_select<false, false>},
    {"rejectattr", do_select<true, false>},
    {"replace", do_replace},
    {"reverse", do_reverse},
    {"round", do_round},
    {"safe", [](Interpreter&, const Value& subject, Arguments&) { return Value::markup(to_text(subject)); }},
    {"select", do_select<false, true>},
    {"selectattr", do_select<true, true>},
    {"slice", do_slice},
    {"sort", do_sort},
    {"string", do_string},
    {"striptags", do_striptags},
    {"sum", do_sum},
    {"title", do_title},
    {"tojson", do_tojson},
    {"trim", do_trim},
    {"truncate", do_truncate},
    {"unique", do_unique},
    {"upper", do_text<upper>},
    {"urlencode", do_urlencode},
    {"wordcount",
     [](Interpreter&, const Value& subject, Arguments&) {
       int64_t count = 0;
       bool inside = false;
       const std::string text = to_text(subject);
       for (size_t at = 0; at < text.size();) {
         const bool word = is_word(next_code_point(text, at));
         count += word && !inside;
         inside = word;
       }
       return Value::integer(count);
     }},
    {"wordwrap", do_wordwrap},
    {"xmlattr", do_xmlattr},
};

const Entry* find_filter(std::string_view name) {
  const auto* found =
      std::find_if(std::begin(kFilters), std::end(kFilters), [&](const Entry& each) { return each.name == name; });
  return found == std::end(kFilters) ? nullptr : found;
}

}  // namespace

bool is_filter(std::string_view name) { return find_filter(name) != nullptr; }

Value apply_filter(Interpreter& interpreter, std::string_view name, const Value& subject, Arguments& arguments) {
  const Entry* entry = find_filter(name);
  require(entry != nullptr, "no filter named '", name, "'");
  return entry->filter(interpreter, subject, arguments);
}

}  // namespace troupe::jinja
