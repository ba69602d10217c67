// Values of the template language, which behave as Python's do: printing, truth, equality, order. No template syntax
// here.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"

namespace troupe::jinja {

class Interpreter;
class Value;

inline constexpr size_t kMaxTextBytes = size_t{64} << 20;  // of one string, and of the whole output

/// What one rendering may use. Objects made while it is current count their bytes; going past a limit throws Error.
class Budget {
 public:
  Budget(int64_t max_bytes, double max_seconds);
  /// Work done, in steps of about a microsecond at most; looks at the clock now and then.
  void charge(uint64_t steps);
  void add_bytes(int64_t bytes);
  static Budget* current();

  /// Makes a budget the current one of this thread for a scope.
  class Use {
   public:
    explicit Use(Budget* budget);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    Budget* before_;
  };

 private:
  int64_t bytes_ = 0, max_bytes_;
  uint64_t steps_ = 0, next_look_ = 0;
  double deadline_s_, max_seconds_;
};

/// Charges the current budget, if there is one.
void charge(uint64_t steps);

/// Base of everything on the heap; knows what it cost.
class Object {
 public:
  explicit Object(size_t bytes);
  virtual ~Object();
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;

 private:
  Budget* budget_;
  int64_t bytes_;
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keyword;
};
using Function = std::function<Value(Interpreter&, Arguments&)>;
/// What `object.name` is; undefined where it has no such attribute.
using AttributeFunction = std::function<Value(std::string_view name)>;

enum class Kind { kUndefined, kNone, kBool, kInt, kFloat, kString, kSequence, kDict, kNamespace, kCallable, kLoop };

/// Which Python type a sequence stands for. A generator can be gone through once, is always true and has no length.
enum class SequenceKind { kList, kTuple, kRange, kGenerator, kView };

struct StringObject;
struct SequenceObject;
struct DictObject;
struct CallableObject;
struct LoopObject;

class Value {
 public:
  Value() = default;  // none
  static Value undefined(std::string message);
  static Value boolean(bool value);
  static Value integer(int64_t value);
  static Value number(double value);
  static Value string(std::string text);
  /// A text that counts as escaped: it escapes what is added to it (MarkupSafe's Markup).
  static Value markup(std::string text);
  static Value list(std::vector<Value> items) { return sequence(std::move(items), SequenceKind::kList); }
  static Value tuple(std::vector<Value> items) { return sequence(std::move(items), SequenceKind::kTuple); }
  static Value sequence(std::vector<Value> items, SequenceKind kind, std::string printed = {});
  static Value dict(std::vector<std::pair<Value, Value>> items);
  static Value make_namespace(std::vector<std::pair<Value, Value>> items);
  static Value callable(std::string name, Function function, AttributeFunction attribute = {});
  static Value loop(std::shared_ptr<LoopObject> loop);
  static Value from_json(const nlohmann::ordered_json& json);

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_integral() const { return kind_ == Kind::kInt || kind_ == Kind::kBool; }  // as Python's int
  bool is_number() const { return is_integral() || kind_ == Kind::kFloat; }
  int64_t as_int() const { return int_; }  // kInt, kBool
  double as_double() const { return kind_ == Kind::kFloat ? float_ : static_cast<double>(int_); }
  const std::string& text() const;  // kString
  bool is_markup() const;           // kString
  const std::string& undefined_message() const;
  SequenceObject& items() const;           // kSequence
  DictObject& entries() const;             // kDict, kNamespace
  CallableObject& function() const;        // kCallable
  LoopObject& loop_state() const;          // kLoop
  bool is_same(const Value& other) const;  // Python's `is`
  size_t depth() const;                    // of nested containers
  std::shared_ptr<Object> object() const { return object_; }

 private:
  Kind kind_ = Kind::kNone;
  union {
    int64_t int_ = 0;
    double float_;
  };
  std::shared_ptr<Object> object_;
};

struct StringObject : Object {
  explicit StringObject(std::string value, bool escaped = false)
      : Object(value.size() + 64), text(std::move(value)), is_markup(escaped) {}
  std::string text;
  bool is_markup;
};

struct SequenceObject : Object {
  SequenceObject(std::vector<Value> values, SequenceKind sequence_kind, std::string text);
  /// The items, once only for a generator.
  const std::vector<Value>& take();
  std::vector<Value> values;
  SequenceKind kind;
  std::string printed;  // of ranges, generators
  bool taken = false;
  size_t depth = 1;
};

struct DictObject : Object {
  explicit DictObject(std::vector<std::pair<Value, Value>> items);
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  void set(const Value& key, Value value);
  void clear();
  std::vector<std::pair<Value, Value>> values;
  size_t depth = 1;

 private:
  std::unordered_map<std::string_view, size_t> index_;  // of string keys, which `values` keeps alive
};

struct CallableObject : Object {
  CallableObject(std::string called, Function body, AttributeFunction own)
      : Object(160), name(std::move(called)), function(std::move(body)), attribute(std::move(own)) {}
  std::string name;
  Function function;            // empty: an object that only has attributes
  AttributeFunction attribute;  // empty: none
};

bool is_true(const Value& value);
/// Throws Python's error where a value can be no key.
void require_hashable(const Value& value);
bool equal(const Value& left, const Value& right);
/// left < right. Throws Error where Python has no order between the two.
bool less(const Value& left, const Value& right);
/// Whether `item` is in `container`, by Python's rules for strings, sequences and dictionaries.
bool contains(const Value& container, const Value& item);
/// Python's name of the type ("str", "NoneType").
const char* type_name(const Value& value);
/// Python's str(): what {{ }} prints; "" for undefined.
std::string to_text(const Value& value);
/// Python's repr(): what a string inside a list looks like.
std::string to_repr(const Value& value);
std::string float_text(double value);
/// What iterating gives; throws Error for what is not iterable.
std::vector<Value> iterate(const Value& value);
/// Python's len(); throws Error where there is none.
int64_t length_of(const Value& value);
[[noreturn]] void fail_undefined(const Value& value);

struct JsonStyle {
  int indent = -1;  // -1: on one line
  std::string indent_text;
  std::string item_separator = ", ", key_separator = ": ";
  bool ensure_ascii = false, sort_keys = false;
};
std::string to_json(const Value& value, const JsonStyle& style);

}  // namespace troupe::jinja
