// Filters, tests, methods and global functions of the template language.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/text/jinja/value.h"

namespace troupe::jinja {

/// Takes the arguments of a built-in one by one, by position or by name.
class ArgumentReader {
 public:
  /// `who` names the built-in in errors.
  ArgumentReader(std::string_view who, Arguments& arguments) : who_(who), arguments_(arguments) {}
  /// The next argument; null where it is absent.
  const Value* optional(std::string_view name);
  const Value& required(std::string_view name);
  std::string text(std::string_view name, std::string fallback);
  int64_t integer(std::string_view name, int64_t fallback);
  bool boolean(std::string_view name, bool fallback);
  /// Throws Error where an argument is left.
  void done() const;

 private:
  std::string_view who_;
  Arguments& arguments_;
  size_t position_ = 0;
  std::vector<std::string> taken_;
};

using Filter = Value (*)(Interpreter&, const Value& subject, Arguments&);
using Test = bool (*)(Interpreter&, const Value& subject, Arguments&);

// Filters of filters_layout.cpp.
Value do_pprint(Interpreter& interpreter, const Value& subject, Arguments& arguments);
Value do_indent(Interpreter& interpreter, const Value& subject, Arguments& arguments);
Value do_truncate(Interpreter& interpreter, const Value& subject, Arguments& arguments);
Value do_wordwrap(Interpreter& interpreter, const Value& subject, Arguments& arguments);
Value do_filesizeformat(Interpreter& interpreter, const Value& subject, Arguments& arguments);
Value do_striptags(Interpreter& interpreter, const Value& subject, Arguments& arguments);
Value do_xmlattr(Interpreter& interpreter, const Value& subject, Arguments& arguments);

bool is_filter(std::string_view name);
bool is_test(std::string_view name);
/// Throw Error for names that are not known.
Value apply_filter(Interpreter& interpreter, std::string_view name, const Value& subject, Arguments& arguments);
bool apply_test(Interpreter& interpreter, std::string_view name, const Value& subject, Arguments& arguments);

/// A method of str, list, tuple or dict bound to its subject; none where the type has no such method.
std::optional<Value> find_method(const Value& subject, std::string_view name);
std::optional<Value> find_string_method(const Value& subject, std::string_view name);
/// namespace, range, dict, raise_exception, strftime_now, cycler, joiner; null where there is no such function.
const Value* find_global(std::string_view name);

/// Attribute by name (x.name) and item by key (x[key]), with Jinja's fallbacks; undefined where there is none.
Value get_attribute(const Value& subject, std::string_view name);
Value get_item(const Value& subject, const Value& key);
/// As the filter `attr` has it: never an item of a dictionary.
Value get_own_attribute(const Value& subject, std::string_view name);
/// Items by a path as filters take it: "a.b" or "0".
Value get_path(const Value& subject, const Value& path);
/// Python's subject[start:stop:step] for strings and sequences.
Value get_slice(const Value& subject, const Value& start, const Value& stop, const Value& step);

/// '%s' % value; where `escape`, what is put in is escaped. Throws Error as Python does.
std::string percent_format(const std::string& format, const Value& values, bool escape = false);
/// 'text {}'.format(...).
std::string brace_format(const std::string& format, const Arguments& arguments, bool escape = false);

// -- text helpers shared by filters and methods, in characters ---
std::string stripped(const std::string& text, const Value* characters, bool left, bool right);
std::vector<Value> split_lines(const std::string& text, bool keep_ends = false);
std::string replaced(const std::string& text, const std::string& from, const std::string& to, int64_t count);
std::string upper(const std::string& text);
std::string lower(const std::string& text);
std::string capitalized(const std::string& text);
std::string repeated(const std::string& text, int64_t count);
std::string padded(const std::string& text, int64_t width, char32_t fill, char align);
bool is_space_python(char32_t c);
std::string html_escaped(const std::string& text);

// -- markup ---
/// A text made of `subject`: markup where that is.
Value text_like(const Value& subject, std::string text);
/// What markup takes up of a value: markup as it is, anything else escaped.
std::string escaped_text(const Value& value);

}  // namespace troupe::jinja
