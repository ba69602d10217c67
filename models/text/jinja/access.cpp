// x.name, x[key] and slices, the methods of lists and dictionaries, and the fields of `loop`.
#include <algorithm>
#include <cstdio>

#include "models/text/jinja/builtins.h"
#include "models/text/jinja/interpreter.h"
#include "models/text/jinja/loop.h"
#include "models/text/unicode.h"

namespace troupe::jinja {
namespace {

Value no_attribute(const Value& subject, std::string_view name) {
  return Value::undefined(concat("'", type_name(subject), " object' has no attribute '", name, "'"));
}

Value view(std::vector<Value> items, const char* name) {
  return Value::sequence(std::move(items), SequenceKind::kView, name);
}

using DictMethod = Value (*)(const DictObject&, Arguments&);

Value dict_items(const DictObject& dict, Arguments&) {
  std::vector<Value> out;
  for (const auto& [key, value] : dict.values) out.push_back(Value::tuple({key, value}));
  return view(std::move(out), "dict_items");
}
Value dict_keys(const DictObject& dict, Arguments&) {
  std::vector<Value> out;
  for (const auto& entry : dict.values) out.push_back(entry.first);
  return view(std::move(out), "dict_keys");
}
Value dict_values(const DictObject& dict, Arguments&) {
  std::vector<Value> out;
  for (const auto& entry : dict.values) out.push_back(entry.second);
  return view(std::move(out), "dict_values");
}
Value dict_get(const DictObject& dict, Arguments& arguments) {
  ArgumentReader reader("get", arguments);
  const Value& key = reader.required("key");
  const Value* fallback = reader.optional("default");
  reader.done();
  const Value* found = dict.find(key);
  return found != nullptr ? *found : fallback != nullptr ? *fallback : Value();
}
Value dict_copy(const DictObject& dict, Arguments&) { return Value::dict(dict.values); }

DictMethod find_dict_method(std::string_view name) {
  static constexpr std::pair<std::string_view, DictMethod> kMethods[] = {
      {"items", dict_items}, {"keys", dict_keys}, {"values", dict_values}, {"get", dict_get}, {"copy", dict_copy}};
  for (const auto& [own, method] : kMethods) {
    if (own == name) return method;
  }
  return nullptr;
}

bool changes_its_subject(const Value& subject, std::string_view name) {
  static constexpr std::string_view kDict[] = {"clear", "pop", "popitem", "setdefault", "update"};
  static constexpr std::string_view kList[] = {"append", "clear", "pop",    "reverse",
                                               "insert", "sort",  "extend", "remove"};
  if (subject.is(Kind::kDict)) return std::find(std::begin(kDict), std::end(kDict), name) != std::end(kDict);
  const bool is_list = subject.is(Kind::kSequence) && subject.items().kind == SequenceKind::kList;
  return is_list && std::find(std::begin(kList), std::end(kList), name) != std::end(kList);
}

Value sequence_index(const Value& subject, Arguments& arguments, bool count_only) {
  ArgumentReader reader(count_only ? "count" : "index", arguments);
  const Value& wanted = reader.required("value");
  reader.done();
  const auto& values = subject.items().values;
  const auto same = [&](const Value& each) { return equal(each, wanted); };
  if (count_only) return Value::integer(std::count_if(values.begin(), values.end(), same));
  const auto found = std::find_if(values.begin(), values.end(), same);
  require(found != values.end(), to_repr(wanted), " is not in list");
  return Value::integer(found - values.begin());
}

Value loop_field(const Value& subject, std::string_view name) {
  const LoopObject& loop = subject.loop_state();
  const auto index = static_cast<int64_t>(loop.index), count = static_cast<int64_t>(loop.items.size());
  if (name == "index") return Value::integer(index + 1);
  if (name == "index0") return Value::integer(index);
  if (name == "revindex") return Value::integer(count - index);
  if (name == "revindex0") return Value::integer(count - index - 1);
  if (name == "first") return Value::boolean(index == 0);
  if (name == "last") return Value::boolean(index + 1 == count);
  if (name == "length") return Value::integer(count);
  if (name == "depth") return Value::integer(loop.depth);
  if (name == "depth0") return Value::integer(loop.depth - 1);
  if (name == "previtem") return index > 0 ? loop.items[loop.index - 1] : Value::undefined("there is no previous item");
  if (name == "nextitem")
    return index + 1 < count ? loop.items[loop.index + 1] : Value::undefined("there is no next item");
  if (name == "cycle") {
    return Value::callable("cycle", [subject](Interpreter&, Arguments& arguments) {
      require(!arguments.positional.empty(), "no items for cycling given");
      return arguments.positional[subject.loop_state().index % arguments.positional.size()];
    });
  }
  if (name == "changed") {
    return Value::callable("changed", [subject](Interpreter&, Arguments& arguments) {
      auto& last = subject.loop_state().last_seen;
      const bool same = last && last->size() == arguments.positional.size() &&
                        std::equal(last->begin(), last->end(), arguments.positional.begin(), equal);
      last = arguments.positional;
      return Value::boolean(!same);
    });
  }
  return no_attribute(subject, name);
}

// Python's slice.indices(): the first index and how many follow at which step.
struct Indices {
  int64_t first, last, count, step;
};
Indices slice_indices(int64_t length, const Value& start, const Value& stop, const Value& step) {
  const auto integer = [](const Value& value, int64_t fallback) {
    if (value.is(Kind::kNone)) return fallback;
    if (value.is(Kind::kUndefined)) fail_undefined(value);
    require(value.is_integral(), "slice indices must be integers or None");
    return value.as_int();
  };
  const int64_t by = integer(step, 1);
  require(by != 0, "slice step cannot be zero");
  const int64_t low = by > 0 ? 0 : -1, high = by > 0 ? length : length - 1;
  const auto clamp = [&](const Value& value, int64_t fallback) {
    if (value.is(Kind::kNone)) return fallback;
    int64_t at = integer(value, 0);
    if (at < 0) at = at < -length ? low : at + length;
    return std::clamp(at, low, std::max(low, high));
  };
  const int64_t first = clamp(start, by > 0 ? low : high), last = clamp(stop, by > 0 ? high : low);
  const int64_t distance = by > 0 ? last - first : first - last;
  const auto size = by > 0 ? static_cast<uint64_t>(by) : ~static_cast<uint64_t>(by) + 1;
  return {first, last, distance > 0 ? static_cast<int64_t>((static_cast<uint64_t>(distance) - 1) / size + 1) : 0, by};
}

// A part of a range is a range, and prints as one.
Value range_slice(const Value& range, std::vector<Value> items, const Indices& indices) {
  long long begin = 0, end = 0, step = 1;
  std::sscanf(range.items().printed.c_str(), "range(%lld, %lld, %lld)", &begin, &end, &step);
  const auto at = [&](int64_t index) { return begin + index * step; };
  const auto by = step * indices.step;
  return Value::sequence(
      std::move(items), SequenceKind::kRange,
      concat("range(", at(indices.first), ", ", at(indices.last), by == 1 ? "" : concat(", ", by), ")"));
}

}  // namespace

std::optional<Value> find_method(const Value& subject, std::string_view name) {
  if (changes_its_subject(subject, name)) {
    return Value::undefined(concat("access to attribute '", name, "' of '", type_name(subject), "' object is unsafe."));
  }
  if (subject.is(Kind::kString)) return find_string_method(subject, name);
  if (subject.is(Kind::kDict)) {
    if (const auto method = find_dict_method(name)) {
      return Value::callable(std::string(name), [subject, method](Interpreter&, Arguments& arguments) {
        return method(subject.entries(), arguments);
      });
    }
  }
  const bool has_index = subject.is(Kind::kSequence) && subject.items().kind <= SequenceKind::kRange;
  if (has_index && (name == "index" || name == "count")) {
    return Value::callable(std::string(name), [subject, count = name == "count"](Interpreter&, Arguments& arguments) {
      return sequence_index(subject, arguments, count);
    });
  }
  if (has_index && name == "copy" && subject.items().kind == SequenceKind::kList) {
    return Value::callable("copy", [subject](Interpreter&, Arguments&) { return subject; });
  }
  return std::nullopt;
}

Value get_own_attribute(const Value& subject, std::string_view name) {
  if (!subject.is(Kind::kDict)) return get_attribute(subject, name);
  auto method = find_method(subject, name);
  return method ? std::move(*method) : no_attribute(subject, name);
}

Value get_attribute(const Value& subject, std::string_view name) {
  switch (subject.kind()) {
    case Kind::kUndefined:
      fail_undefined(subject);
    case Kind::kLoop:
      return loop_field(subject, name);
    case Kind::kNamespace: {
      const Value* found = subject.entries().find(name);
      return found != nullptr ? *found : no_attribute(subject, name);
    }
    case Kind::kCallable:
      return subject.function().attribute ? subject.function().attribute(name) : no_attribute(subject, name);
    default:
      break;
  }
  if (auto method = find_method(subject, name)) return *method;
  if (subject.is(Kind::kDict)) {
    if (const Value* found = subject.entries().find(name)) return *found;
  }
  // The pairs that groupby gives have names.
  if (subject.is(Kind::kSequence) && subject.items().printed == "group" && (name == "grouper" || name == "list")) {
    return subject.items().values[name == "list"];
  }
  return no_attribute(subject, name);
}

Value get_item(const Value& subject, const Value& key) {
  if (subject.is(Kind::kUndefined)) fail_undefined(subject);
  const bool indexable =
      subject.is(Kind::kString) || (subject.is(Kind::kSequence) && subject.items().kind <= SequenceKind::kRange);
  if (indexable && key.is_integral()) {
    const int64_t length = length_of(subject);
    int64_t at = key.as_int();
    if (at < 0) at += length;
    if (at < 0 || at >= length)
      return Value::undefined(concat(type_name(subject), " object has no element ", to_repr(key)));
    if (subject.is(Kind::kSequence)) return subject.items().values[static_cast<size_t>(at)];
    size_t begin = 0;
    charge(static_cast<uint64_t>(at) / 256);
    for (int64_t i = 0; i < at; ++i) begin += utf8_width(subject.text()[begin]);
    return text_like(subject, subject.text().substr(begin, utf8_width(subject.text()[begin])));
  }
  if (subject.is(Kind::kDict)) {
    if (const Value* found = subject.entries().find(key)) return *found;
  }
  if (key.is(Kind::kString)) {
    if (subject.is(Kind::kDict)) {
      if (auto method = find_method(subject, key.text())) return *method;
    } else {
      return get_attribute(subject, key.text());
    }
  }
  return Value::undefined(concat("'", type_name(subject), " object' has no attribute ", to_repr(key)));
}

Value get_path(const Value& subject, const Value& path) {
  if (path.is_integral()) return get_item(subject, path);
  const std::string text = to_text(path);
  Value value = subject;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t dot = std::min(text.find('.', begin), text.size());
    const std::string part = text.substr(begin, dot - begin);
    const bool is_index = !part.empty() && part.size() < 18 &&
                          std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    value = get_item(value, is_index ? Value::integer(std::stoll(part)) : Value::string(part));
    begin = dot + 1;
  }
  return value;
}

Value get_slice(const Value& subject, const Value& start, const Value& stop, const Value& step) {
  if (subject.is(Kind::kUndefined)) fail_undefined(subject);
  if (subject.is(Kind::kSequence) && subject.items().kind <= SequenceKind::kRange) {
    const auto& values = subject.items().values;
    const Indices indices = slice_indices(static_cast<int64_t>(values.size()), start, stop, step);
    std::vector<Value> out;
    for (int64_t i = 0; i < indices.count; ++i)
      out.push_back(values[static_cast<size_t>(indices.first + i * indices.step)]);
    if (subject.items().kind == SequenceKind::kRange) return range_slice(subject, std::move(out), indices);
    return Value::sequence(std::move(out),
                           subject.items().kind == SequenceKind::kTuple ? SequenceKind::kTuple : SequenceKind::kList);
  }
  if (subject.is(Kind::kString)) {
    const auto characters = to_code_points(subject.text());
    charge(characters.size() / 128);
    const Indices indices = slice_indices(static_cast<int64_t>(characters.size()), start, stop, step);
    std::string out;
    for (int64_t i = 0; i < indices.count; ++i)
      append_utf8(out, characters[static_cast<size_t>(indices.first + i * indices.step)]);
    return text_like(subject, std::move(out));
  }
  fail("'", type_name(subject), "' object is not subscriptable");
}

}  // namespace troupe::jinja
