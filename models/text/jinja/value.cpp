// Making values, their cost, truth, equality and order.
#include "models/text/jinja/value.h"

#include <chrono>
#include <cmath>
#include <cstring>

#include "models/text/jinja/loop.h"
#include "models/text/unicode.h"

namespace troupe::jinja {
namespace {

constexpr size_t kMaxDepth = 200;  // of nested containers: printing and freeing them recurses
thread_local Budget* current_budget = nullptr;

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

size_t checked_depth(size_t depth) {
  require(depth <= kMaxDepth, "lists and dictionaries nested more than ", kMaxDepth, " deep");
  return depth;
}

}  // namespace

Budget::Budget(int64_t max_bytes, double max_seconds)
    : max_bytes_(max_bytes), deadline_s_(now_s() + max_seconds), max_seconds_(max_seconds) {}

void Budget::charge(uint64_t steps) {
  steps_ += steps;
  if (steps_ < next_look_) return;
  next_look_ = steps_ + 2000;
  require(now_s() < deadline_s_, "the time limit of ", max_seconds_, " s is over");
}

void Budget::add_bytes(int64_t bytes) {
  require(bytes_ + bytes <= max_bytes_, "the memory limit of ", max_bytes_, " bytes is reached");
  bytes_ += bytes;
}

Budget* Budget::current() { return current_budget; }
Budget::Use::Use(Budget* budget) : before_(current_budget) { current_budget = budget; }
Budget::Use::~Use() { current_budget = before_; }

void charge(uint64_t steps) {
  if (current_budget != nullptr) current_budget->charge(steps);
}

Object::Object(size_t bytes) : budget_(current_budget), bytes_(static_cast<int64_t>(bytes)) {
  if (budget_ == nullptr) return;
  budget_->add_bytes(bytes_);
  budget_->charge(1 + bytes / 512);
}

Object::~Object() {
  if (budget_ != nullptr) budget_->add_bytes(-bytes_);
}

Value Value::undefined(std::string message) {
  Value out;
  out.kind_ = Kind::kUndefined;
  out.object_ = std::make_shared<StringObject>(std::move(message));
  return out;
}

Value Value::boolean(bool value) {
  Value out;
  out.kind_ = Kind::kBool;
  out.int_ = value ? 1 : 0;
  return out;
}

Value Value::integer(int64_t value) {
  Value out;
  out.kind_ = Kind::kInt;
  out.int_ = value;
  return out;
}

Value Value::number(double value) {
  Value out;
  out.kind_ = Kind::kFloat;
  out.float_ = value;
  return out;
}

Value Value::string(std::string text) {
  Value out;
  out.kind_ = Kind::kString;
  out.object_ = std::make_shared<StringObject>(std::move(text));
  return out;
}

Value Value::markup(std::string text) {
  Value out;
  out.kind_ = Kind::kString;
  out.object_ = std::make_shared<StringObject>(std::move(text), true);
  return out;
}

Value Value::sequence(std::vector<Value> items, SequenceKind kind, std::string printed) {
  Value out;
  out.kind_ = Kind::kSequence;
  out.object_ = std::make_shared<SequenceObject>(std::move(items), kind, std::move(printed));
  return out;
}

Value Value::dict(std::vector<std::pair<Value, Value>> items) {
  Value out;
  out.kind_ = Kind::kDict;
  out.object_ = std::make_shared<DictObject>(std::move(items));
  return out;
}

Value Value::make_namespace(std::vector<std::pair<Value, Value>> items) {
  Value out = dict(std::move(items));
  out.kind_ = Kind::kNamespace;
  return out;
}

Value Value::callable(std::string name, Function function, AttributeFunction attribute) {
  Value out;
  out.kind_ = Kind::kCallable;
  out.object_ = std::make_shared<CallableObject>(std::move(name), std::move(function), std::move(attribute));
  return out;
}

Value Value::loop(std::shared_ptr<LoopObject> loop) {
  Value out;
  out.kind_ = Kind::kLoop;
  out.object_ = std::move(loop);
  return out;
}

Value Value::from_json(const nlohmann::ordered_json& json) {
  if (json.is_null()) return {};
  if (json.is_boolean()) return boolean(json.get<bool>());
  if (json.is_number_unsigned() && json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
    return number(json.get<double>());
  if (json.is_number_integer()) return integer(json.get<int64_t>());
  if (json.is_number()) return number(json.get<double>());
  if (json.is_string()) return string(repair_utf8(json.get_ref<const std::string&>()));
  if (json.is_array()) {
    std::vector<Value> items;
    for (const auto& item : json) items.push_back(from_json(item));
    return list(std::move(items));
  }
  require(json.is_object(), "a binary JSON value cannot be given to a template");
  std::vector<std::pair<Value, Value>> items;
  for (const auto& [key, item] : json.items()) items.emplace_back(string(repair_utf8(key)), from_json(item));
  return dict(std::move(items));
}

const std::string& Value::text() const { return static_cast<StringObject&>(*object_).text; }
bool Value::is_markup() const { return kind_ == Kind::kString && static_cast<StringObject&>(*object_).is_markup; }
const std::string& Value::undefined_message() const { return text(); }
SequenceObject& Value::items() const { return static_cast<SequenceObject&>(*object_); }
DictObject& Value::entries() const { return static_cast<DictObject&>(*object_); }
CallableObject& Value::function() const { return static_cast<CallableObject&>(*object_); }
LoopObject& Value::loop_state() const { return static_cast<LoopObject&>(*object_); }

bool Value::is_same(const Value& other) const {
  if (kind_ != other.kind_) return false;
  if (object_ || other.object_) {
    return object_ == other.object_ || (kind_ == Kind::kString && text() == other.text());
  }
  return kind_ == Kind::kFloat ? float_ == other.float_ : int_ == other.int_;
}

size_t Value::depth() const {
  if (kind_ == Kind::kSequence) return items().depth;
  return kind_ == Kind::kDict ? entries().depth : 0;
}

SequenceObject::SequenceObject(std::vector<Value> items, SequenceKind sequence_kind, std::string text)
    : Object(items.size() * sizeof(Value) + 96),
      values(std::move(items)),
      kind(sequence_kind),
      printed(std::move(text)) {
  for (const auto& value : values) depth = std::max(depth, checked_depth(value.depth() + 1));
}

const std::vector<Value>& SequenceObject::take() {
  static const std::vector<Value> nothing;
  if (kind == SequenceKind::kGenerator && std::exchange(taken, true)) return nothing;
  return values;
}

DictObject::DictObject(std::vector<std::pair<Value, Value>> items) : Object(items.size() * 2 * sizeof(Value) + 128) {
  for (auto& [key, value] : items) set(key, std::move(value));
}

const Value* DictObject::find(std::string_view key) const {
  const auto found = index_.find(key);
  return found == index_.end() ? nullptr : &values[found->second].second;
}

const Value* DictObject::find(const Value& key) const {
  if (key.is(Kind::kString)) return find(std::string_view(key.text()));
  for (const auto& [own, value] : values) {
    if (!own.is(Kind::kString) && equal(own, key)) return &value;
  }
  return nullptr;
}

void DictObject::set(const Value& key, Value value) {
  require_hashable(key);
  depth = std::max(depth, checked_depth(value.depth() + 1));
  if (const Value* found = find(key)) {
    *const_cast<Value*>(found) = std::move(value);
    return;
  }
  values.emplace_back(key, std::move(value));
  if (key.is(Kind::kString)) index_.emplace(values.back().first.text(), values.size() - 1);
}

void DictObject::clear() {
  index_.clear();
  values.clear();
}

void require_hashable(const Value& value) {
  const bool is_list = value.is(Kind::kSequence) && value.items().kind == SequenceKind::kList;
  require(!value.is(Kind::kDict) && !is_list, "unhashable type: '", type_name(value), "'");
}

bool is_true(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return value.as_int() != 0;
    case Kind::kFloat:
      return value.as_double() != 0;
    case Kind::kString:
      return !value.text().empty();
    case Kind::kSequence:
      return value.items().kind == SequenceKind::kGenerator || !value.items().values.empty();
    case Kind::kDict:
      return !value.entries().values.empty();
    default:
      return true;
  }
}

bool equal(const Value& left, const Value& right) {
  charge(1);
  if (left.is_integral() && right.is_integral()) return left.as_int() == right.as_int();
  if (left.is_number() && right.is_number()) return left.as_double() == right.as_double();
  if (left.kind() != right.kind()) return false;
  switch (left.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kString:
      return left.text() == right.text();
    case Kind::kSequence: {
      const auto &a = left.items(), &b = right.items();
      if (&a == &b) return true;
      if (a.kind != b.kind || a.kind == SequenceKind::kGenerator || a.values.size() != b.values.size()) return false;
      for (size_t i = 0; i < a.values.size(); ++i) {
        if (!equal(a.values[i], b.values[i])) return false;
      }
      return true;
    }
    case Kind::kDict: {
      const auto &a = left.entries(), &b = right.entries();
      if (a.values.size() != b.values.size()) return false;
      for (const auto& [key, value] : a.values) {
        const Value* other = b.find(key);
        if (other == nullptr || !equal(value, *other)) return false;
      }
      return true;
    }
    default:
      return left.object() == right.object();
  }
}

bool less(const Value& left, const Value& right) {
  charge(1);
  if (left.is_integral() && right.is_integral()) return left.as_int() < right.as_int();
  if (left.is_number() && right.is_number()) return left.as_double() < right.as_double();
  if (left.is(Kind::kUndefined)) fail_undefined(left);
  if (right.is(Kind::kUndefined)) fail_undefined(right);
  // UTF-8 orders as its code points do.
  if (left.is(Kind::kString) && right.is(Kind::kString)) return left.text() < right.text();
  if (left.is(Kind::kSequence) && right.is(Kind::kSequence) && left.items().kind == right.items().kind) {
    const auto &a = left.items().values, &b = right.items().values;
    for (size_t i = 0; i < a.size() && i < b.size(); ++i) {
      if (!equal(a[i], b[i])) return less(a[i], b[i]);
    }
    return a.size() < b.size();
  }
  fail("'<' not supported between instances of '", type_name(left), "' and '", type_name(right), "'");
}

bool contains(const Value& container, const Value& item) {
  if (container.is(Kind::kString)) {
    if (item.is(Kind::kUndefined)) fail_undefined(item);
    require(item.is(Kind::kString), "'in <string>' requires string as left operand, not ", type_name(item));
    const auto &text = container.text(), &part = item.text();
    charge((text.size() + part.size()) / 256);
    return part.empty() || memmem(text.data(), text.size(), part.data(), part.size()) != nullptr;
  }
  if (container.is(Kind::kDict)) {
    require_hashable(item);
    return container.entries().find(item) != nullptr;
  }
  for (const auto& each : iterate(container)) {
    if (equal(each, item)) return true;
  }
  return false;
}

std::vector<Value> iterate(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return {};
    case Kind::kString: {
      std::vector<Value> out;
      for (size_t at = 0; at < value.text().size();) {
        const size_t width = utf8_width(value.text()[at]);
        out.push_back(Value::string(value.text().substr(at, width)));
        at += width;
      }
      return out;
    }
    case Kind::kSequence:
      charge(value.items().values.size() / 16);
      return value.items().take();
    case Kind::kDict: {
      std::vector<Value> out;
      for (const auto& [key, unused] : value.entries().values) out.push_back(key);
      return out;
    }
    default:
      fail("'", type_name(value), "' object is not iterable");
  }
}

int64_t length_of(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kString:
      charge(value.text().size() / 1024);
      return static_cast<int64_t>(num_code_points(value.text()));
    case Kind::kSequence:
      require(value.items().kind != SequenceKind::kGenerator, "object of type 'generator' has no len()");
      return static_cast<int64_t>(value.items().values.size());
    case Kind::kDict:
      return static_cast<int64_t>(value.entries().values.size());
    default:
      fail("object of type '", type_name(value), "' has no len()");
  }
}

const char* type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return "str";
    case Kind::kSequence: {
      constexpr const char* kNames[] = {"list", "tuple", "range", "generator", "dict_view"};
      return kNames[static_cast<int>(value.items().kind)];
    }
    case Kind::kDict:
      return "dict";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kCallable:
      return "function";
    case Kind::kLoop:
      return "LoopContext";
  }
  return "object";
}

void fail_undefined(const Value& value) { fail(value.undefined_message()); }

}  // namespace troupe::jinja
