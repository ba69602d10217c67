// Tests (`x is defined`) and global functions.
#include <algorithm>
#include <ctime>
#include <unordered_map>

#include "models/text/jinja/builtins.h"
#include "models/text/jinja/interpreter.h"

namespace troupe::jinja {
namespace {

const Value& other(Arguments& arguments) {
  require(arguments.positional.size() == 1 && arguments.keyword.empty(), "the test takes one argument");
  return arguments.positional[0];
}

template <Kind K>
bool is_kind(Interpreter&, const Value& subject, Arguments&) {
  return subject.is(K);
}
template <Operator Op>
bool compares(Interpreter&, const Value& subject, Arguments& arguments) {
  return compare_with(Op, subject, other(arguments));
}
template <int64_t Rest>
bool has_parity(Interpreter&, const Value& subject, Arguments&) {
  return equal(binary(Operator::kModulo, subject, Value::integer(2)), Value::integer(Rest));
}
template <bool Upper>
bool has_case(Interpreter&, const Value& subject, Arguments&) {
  const std::string text = to_text(subject);
  return text == (Upper ? upper(text) : lower(text)) && text != (Upper ? lower(text) : upper(text));
}

struct Entry {
  std::string_view name;
  Test test;
};
constexpr Entry kTests[] = {
    {"boolean", is_kind<Kind::kBool>},
    {"callable",
     [](Interpreter&, const Value& subject, Arguments&) {
       return (subject.is(Kind::kCallable) && subject.function().function) || subject.is(Kind::kLoop);
     }},
    {"defined", [](Interpreter&, const Value& subject, Arguments&) { return !subject.is(Kind::kUndefined); }},
    {"divisibleby",
     [](Interpreter&, const Value& subject, Arguments& arguments) {
       return equal(binary(Operator::kModulo, subject, other(arguments)), Value::integer(0));
     }},
    {"eq", compares<Operator::kEqual>},
    {"equalto", compares<Operator::kEqual>},
    {"==", compares<Operator::kEqual>},
    {"escaped", [](Interpreter&, const Value& subject, Arguments&) { return subject.is_markup(); }},
    {"even", has_parity<0>},
    {"false",
     [](Interpreter&, const Value& subject, Arguments&) { return subject.is(Kind::kBool) && subject.as_int() == 0; }},
    {"filter",
     [](Interpreter&, const Value& subject, Arguments&) {
       require_hashable(subject);
       return subject.is(Kind::kString) && is_filter(subject.text());
     }},
    {"float", is_kind<Kind::kFloat>},
    {"ge", compares<Operator::kGreaterEqual>},
    {">=", compares<Operator::kGreaterEqual>},
    {"greaterthan", compares<Operator::kGreater>},
    {"gt", compares<Operator::kGreater>},
    {">", compares<Operator::kGreater>},
    {"in", compares<Operator::kIn>},
    {"integer", is_kind<Kind::kInt>},
    {"iterable",
     [](Interpreter&, const Value& subject, Arguments&) {
       return subject.is(Kind::kUndefined) || subject.is(Kind::kString) || subject.is(Kind::kSequence) ||
              subject.is(Kind::kDict);
     }},
    {"le", compares<Operator::kLessEqual>},
    {"<=", compares<Operator::kLessEqual>},
    {"lessthan", compares<Operator::kLess>},
    {"lower", has_case<false>},
    {"lt", compares<Operator::kLess>},
    {"<", compares<Operator::kLess>},
    {"mapping", is_kind<Kind::kDict>},
    {"ne", compares<Operator::kNotEqual>},
    {"!=", compares<Operator::kNotEqual>},
    {"none", is_kind<Kind::kNone>},
    {"number", [](Interpreter&, const Value& subject, Arguments&) { return subject.is_number(); }},
    {"odd", has_parity<1>},
    {"sameas",
     [](Interpreter&, const Value& subject, Arguments& arguments) { return subject.is_same(other(arguments)); }},
    {"sequence",
     [](Interpreter&, const Value& subject, Arguments&) {
       return subject.is(Kind::kUndefined) || subject.is(Kind::kString) || subject.is(Kind::kDict) ||
              (subject.is(Kind::kSequence) && subject.items().kind <= SequenceKind::kRange);
     }},
    {"string", is_kind<Kind::kString>},
    {"test",
     [](Interpreter&, const Value& subject, Arguments&) {
       require_hashable(subject);
       return subject.is(Kind::kString) && is_test(subject.text());
     }},
    {"true",
     [](Interpreter&, const Value& subject, Arguments&) { return subject.is(Kind::kBool) && subject.as_int() == 1; }},
    {"undefined", is_kind<Kind::kUndefined>},
    {"upper", has_case<true>},
};

const Entry* find_test(std::string_view name) {
  const auto* found =
      std::find_if(std::begin(kTests), std::end(kTests), [&](const Entry& each) { return each.name == name; });
  return found == std::end(kTests) ? nullptr : found;
}

std::vector<std::pair<Value, Value>> pairs_of(Arguments& arguments) {
  std::vector<std::pair<Value, Value>> out;
  require(arguments.positional.size() <= 1, "expected at most 1 argument, got ", arguments.positional.size());
  if (!arguments.positional.empty()) {
    if (arguments.positional[0].is(Kind::kDict)) {
      out = arguments.positional[0].entries().values;
    } else {
      for (const auto& item : iterate(arguments.positional[0])) {
        const auto pair = iterate(item);
        require(pair.size() == 2, "a dictionary is made of pairs");
        out.emplace_back(pair[0], pair[1]);
      }
    }
  }
  for (const auto& [name, value] : arguments.keyword) out.emplace_back(Value::string(name), value);
  return out;
}

Value make_range(Interpreter&, Arguments& arguments) {
  require(!arguments.positional.empty() && arguments.positional.size() <= 3 && arguments.keyword.empty(),
          "range takes one to three integers");
  int64_t bounds[3] = {0, 0, 1};
  for (size_t i = 0; i < arguments.positional.size(); ++i) {
    const Value& value = arguments.positional[i];
    if (value.is(Kind::kUndefined)) fail_undefined(value);
    require(value.is_integral(), "'", type_name(value), "' object cannot be interpreted as an integer");
    bounds[i] = value.as_int();
  }
  if (arguments.positional.size() == 1) std::swap(bounds[0], bounds[1]);
  const auto [start, stop, step] = bounds;
  require(step != 0, "range() arg 3 must not be zero");
  std::vector<Value> out;
  int64_t at = start;
  while (step > 0 ? at < stop : at > stop) {
    require(out.size() < 100000, "Range too big. The sandbox blocks ranges larger than MAX_RANGE (100000).");
    out.push_back(Value::integer(at));
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  return Value::sequence(std::move(out), SequenceKind::kRange,
                         concat("range(", start, ", ", stop, step == 1 ? "" : concat(", ", step), ")"));
}

Value now_as_text(Interpreter& interpreter, Arguments& arguments) {
  ArgumentReader reader("strftime_now", arguments);
  const std::string format = to_text(reader.required("format"));
  reader.done();
  const std::time_t now = interpreter.now();
  std::tm parts{};
  localtime_r(&now, &parts);
  char buffer[1024];
  const size_t size = format.empty() ? 0 : std::strftime(buffer, sizeof buffer, format.c_str(), &parts);
  return Value::string(std::string(buffer, size));
}

Value make_joiner(Interpreter&, Arguments& arguments) {
  const std::string separator = ArgumentReader("joiner", arguments).text("sep", ", ");
  return Value::callable("joiner", [separator, used = std::make_shared<bool>(false)](Interpreter&, Arguments&) {
    return Value::string(std::exchange(*used, true) ? separator : "");
  });
}

Value make_cycler(Interpreter&, Arguments& arguments) {
  require(!arguments.positional.empty() && arguments.keyword.empty(), "at least one item has to be provided");
  struct State {
    std::vector<Value> items;
    size_t at = 0;
  };
  const auto state = std::make_shared<State>(State{arguments.positional});
  return Value::callable("cycler", {}, [state](std::string_view name) {
    if (name == "current") return state->items[state->at];
    if (name == "pos") return Value::integer(static_cast<int64_t>(state->at));
    if (name == "next") {
      return Value::callable("next", [state](Interpreter&, Arguments&) {
        return state->items[std::exchange(state->at, (state->at + 1) % state->items.size())];
      });
    }
    if (name == "reset") {
      return Value::callable("reset", [state](Interpreter&, Arguments&) {
        state->at = 0;
        return Value();
      });
    }
    return Value::undefined(concat("'Cycler object' has no attribute '", name, "'"));
  });
}

}  // namespace

bool is_test(std::string_view name) { return find_test(name) != nullptr; }

bool apply_test(Interpreter& interpreter, std::string_view name, const Value& subject, Arguments& arguments) {
  const Entry* entry = find_test(name);
  require(entry != nullptr, "no test named '", name, "'");
  return entry->test(interpreter, subject, arguments);
}

const Value* find_global(std::string_view name) {
  static const auto globals = [] {
    const Budget::Use unmetered(nullptr);  // these outlive every rendering
    std::unordered_map<std::string_view, Value> out;
    const auto add = [&](const char* own, Function function) {
      out.emplace(own, Value::callable(own, std::move(function)));
    };
    add("range", make_range);
    add("dict", [](Interpreter&, Arguments& arguments) { return Value::dict(pairs_of(arguments)); });
    add("namespace", [](Interpreter& interpreter, Arguments& arguments) {
      Value made = Value::make_namespace(pairs_of(arguments));
      interpreter.keep_namespace(made);
      return made;
    });
    add("raise_exception", [](Interpreter&, Arguments& arguments) -> Value {
      fail(to_text(ArgumentReader("raise_exception", arguments).required("message")));
    });
    add("strftime_now", now_as_text);
    add("joiner", make_joiner);
    add("cycler", make_cycler);
    return out;
  }();
  const auto found = globals.find(name);
  return found == globals.end() ? nullptr : &found->second;
}

}  // namespace troupe::jinja
