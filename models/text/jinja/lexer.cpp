// White space around tags follows Jinja 3.1: "-" strips, "+" keeps, else block tags and comments lose the blanks before
// them on their line and the newline behind them.
#include "models/text/jinja/lexer.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "base/error.h"
#include "models/text/unicode.h"

namespace troupe::jinja {
namespace {

// What Python's str.isspace and re's \s hold: White_Space and the four ASCII separators.
bool is_python_space(char32_t c) { return is_white_space(c) || (c >= 0x1C && c <= 0x1F); }

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(with_unix_newlines(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) root();
    add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  static std::string with_unix_newlines(std::string_view source) {
    std::string out;
    out.reserve(source.size());
    for (size_t i = 0; i < source.size(); ++i) {
      if (source[i] == '\r') {
        out += '\n';
        if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
      } else {
        out += source[i];
      }
    }
    if (!out.empty() && out.back() == '\n') out.pop_back();
    return repair_utf8(out);
  }

  template <class... Ts>
  [[noreturn]] void fail_here(const Ts&... parts) const {
    fail("chat template, line ", line_, ": ", parts...);
  }
  std::string_view rest() const { return std::string_view(source_).substr(at_); }
  bool at(std::string_view text) const { return rest().starts_with(text); }
  void advance(size_t count) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<ptrdiff_t>(at_),
                                         source_.begin() + static_cast<ptrdiff_t>(at_ + count), '\n'));
    at_ += count;
  }
  void skip_spaces() {
    while (at_ < source_.size()) {
      size_t next = at_;
      if (!is_python_space(next_code_point(source_, next))) return;
      advance(next - at_);
    }
  }
  void add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_, 0, 0}); }
  void add_text(std::string text, int line) {
    if (!text.empty()) tokens_.push_back({TokenKind::kText, std::move(text), line, 0, 0});
  }

  static std::string right_stripped(std::string_view text) {
    size_t end = 0;
    for (size_t i = 0; i < text.size();) {
      if (!is_python_space(next_code_point(text, i))) end = i;
    }
    return std::string(text.substr(0, end));
  }
  static bool all_space(std::string_view text) {
    for (size_t i = 0; i < text.size();) {
      if (!is_python_space(next_code_point(text, i))) return false;
    }
    return true;
  }

  // The text before a tag that opens with `sign`.
  std::string text_before(std::string_view text, char sign, bool is_variable) const {
    if (sign == '-') return right_stripped(text);
    if (sign != '+' && !is_variable) {
      const size_t newline = text.rfind('\n');
      const size_t line_begin = newline == text.npos ? 0 : newline + 1;
      if ((line_begin > 0 || line_starting_) && all_space(text.substr(line_begin)))
        return std::string(text.substr(0, line_begin));
    }
    return std::string(text);
  }

  // Where the next tag opens, from `from`; npos where there is none.
  size_t next_tag(size_t from) const {
    for (size_t i = source_.find('{', from); i != source_.npos; i = source_.find('{', i + 1)) {
      if (i + 1 < source_.size() && (source_[i + 1] == '{' || source_[i + 1] == '%' || source_[i + 1] == '#')) return i;
    }
    return source_.npos;
  }

  void root() {
    const size_t tag = next_tag(at_);
    const int text_line = line_;
    if (tag == source_.npos) {
      add_text(source_.substr(at_), text_line);
      advance(source_.size() - at_);
      return;
    }
    const char kind = source_[tag + 1];
    const char after = tag + 2 < source_.size() ? source_[tag + 2] : ' ';
    const char sign = after == '-' || after == '+' ? after : ' ';
    add_text(text_before(std::string_view(source_).substr(at_, tag - at_), sign, kind == '{'), text_line);
    advance(tag + 2 + (sign != ' ') - at_);
    line_starting_ = false;
    if (kind == '#') {
      comment();
    } else if (kind == '{') {
      add(TokenKind::kVariableBegin, "{{");
      expression(/*in_block=*/false);
    } else if (!raw()) {
      add(TokenKind::kBlockBegin, "{%");
      expression(/*in_block=*/true);
    }
  }

  // Behind "%}" or "#}" with its sign: the white space that goes with it.
  void after_tag(char sign) {
    if (sign == '-') {
      const size_t begin = at_;
      skip_spaces();
      line_starting_ = at_ > begin && source_[at_ - 1] == '\n';
    } else if (sign != '+' && at("\n")) {
      advance(1);
      line_starting_ = true;
    }
  }

  void comment() {
    const size_t end = source_.find("#}", at_);
    if (end == source_.npos) fail_here("a comment without its end #}");
    const char before = end > at_ ? source_[end - 1] : ' ';
    advance(end + 2 - at_);
    after_tag(before == '-' || before == '+' ? before : ' ');
  }

  // {% raw %} ... {% endraw %}: true where that is what stands here.
  bool raw() {
    const size_t begin = at_;
    const int line = line_;
    skip_spaces();
    if (at("raw")) {
      advance(3);
      skip_spaces();
      const bool strip = at("-%}");
      if (strip || at("%}")) {
        advance(strip ? 3 : 2);
        if (strip) skip_spaces();
        raw_text();
        return true;
      }
    }
    at_ = begin;
    line_ = line;
    return false;
  }

  void raw_text() {
    const size_t begin = at_;
    for (size_t tag = source_.find("{%", at_); tag != source_.npos; tag = source_.find("{%", tag + 2)) {
      const int line = line_;
      at_ = begin;
      advance(tag + 2 - begin);
      const char sign = at("-") || at("+") ? source_[at_] : ' ';
      if (sign != ' ') advance(1);
      skip_spaces();
      if (at("endraw")) {
        advance(6);
        skip_spaces();
        const char end_sign = at("-") || at("+") ? source_[at_] : ' ';
        if (end_sign != ' ') advance(1);
        if (at("%}")) {
          line_starting_ = source_[begin - 1] == '\n';
          add_text(text_before(std::string_view(source_).substr(begin, tag - begin), sign, false), line);
          advance(2);
          line_starting_ = false;
          after_tag(end_sign);
          return;
        }
      }
      line_ = line;
    }
    fail_here("a raw block without its end");
  }

  void expression(bool in_block) {
    const std::string_view close = in_block ? "%}" : "}}";
    std::string open_brackets;
    for (;;) {
      skip_spaces();
      if (at_ >= source_.size()) fail_here("the template ends inside a tag");
      if (open_brackets.empty()) {
        const bool strip = at("-") && rest().substr(1).starts_with(close);
        const bool keep = in_block && at("+") && rest().substr(1).starts_with(close);
        if (strip || keep || at(close)) {
          add(in_block ? TokenKind::kBlockEnd : TokenKind::kVariableEnd, std::string(close));
          advance(strip || keep ? 3 : 2);
          if (in_block || strip) after_tag(strip ? '-' : keep ? '+' : ' ');
          return;
        }
      }
      const char c = source_[at_];
      if (c == '"' || c == '\'') {
        string_literal(c);
      } else if (c >= '0' && c <= '9') {
        number_literal();
      } else if (is_name_start(at_)) {
        size_t end = at_;
        while (end < source_.size() && is_name_part(end)) next_code_point(source_, end);
        add(TokenKind::kName, source_.substr(at_, end - at_));
        advance(end - at_);
      } else {
        operator_token(open_brackets);
      }
    }
  }

  bool is_name_start(size_t at) const {
    const char32_t c = next_code_point(source_, at);
    return is_word(c) && !is_numeric(c);
  }
  bool is_name_part(size_t at) const { return is_word(next_code_point(source_, at)); }

  void operator_token(std::string& open_brackets) {
    static constexpr std::string_view kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                      "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                      ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
    for (const auto text : kOperators) {
      if (!at(text)) continue;
      const char c = text[0];
      if (c == '(' || c == '[' || c == '{') open_brackets += c == '(' ? ')' : c == '[' ? ']' : '}';
      if (c == ')' || c == ']' || c == '}') {
        if (open_brackets.empty()) fail_here("unexpected '", c, "'");
        if (open_brackets.back() != c) fail_here("unexpected '", c, "', expected '", open_brackets.back(), "'");
        open_brackets.pop_back();
      }
      add(TokenKind::kOperator, std::string(text));
      advance(text.size());
      return;
    }
    fail_here("unexpected character '", source_.substr(at_, utf8_width(source_[at_])), "'");
  }

  void number_literal() {
    const auto digit = [&](size_t i, bool hex = false) {
      const char c = i < source_.size() ? source_[i] : ' ';
      return (c >= '0' && c <= '9') || (hex && ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F')));
    };
    const auto digits = [&](size_t i, bool hex = false) {  // behind a run of digits and single underscores
      while (digit(i, hex) || (i < source_.size() && source_[i] == '_' && digit(i + 1, hex))) ++i;
      return i;
    };
    const auto lower = [&](size_t i) { return i < source_.size() ? static_cast<char>(source_[i] | 0x20) : ' '; };
    size_t end = at_;
    int base = 10;
    bool is_float = false;
    if (source_[at_] == '0' && (lower(at_ + 1) == 'x' || lower(at_ + 1) == 'o' || lower(at_ + 1) == 'b')) {
      base = lower(at_ + 1) == 'x' ? 16 : lower(at_ + 1) == 'o' ? 8 : 2;
      end = digits(at_ + 2, true);
    } else {
      end = digits(at_);
      if (end < source_.size() && source_[end] == '.' && digit(end + 1)) {
        is_float = true;
        end = digits(end + 1);
      }
      const size_t sign = lower(end) == 'e' ? end + 1 : source_.npos;
      if (sign != source_.npos) {
        const size_t first = sign < source_.size() && (source_[sign] == '+' || source_[sign] == '-') ? sign + 1 : sign;
        if (digit(first)) {
          is_float = true;
          end = digits(first);
        }
      }
    }
    std::string text = source_.substr(at_, end - at_);
    std::erase(text, '_');
    Token token{is_float ? TokenKind::kFloat : TokenKind::kInteger, text, line_, 0, 0};
    if (is_float) {
      token.number = std::strtod(text.c_str(), nullptr);
    } else {
      const char* first = text.data() + (base == 10 ? 0 : 2);
      const auto [stop, problem] = std::from_chars(first, text.data() + text.size(), token.integer, base);
      if (problem != std::errc() || stop != text.data() + text.size())
        fail_here("'", text, "' is not a 64-bit integer");
    }
    tokens_.push_back(std::move(token));
    advance(end - at_);
  }

  void string_literal(char quote) {
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) fail_here("a string without its closing quote");
    add(TokenKind::kString, unescaped(std::string_view(source_).substr(at_ + 1, end - at_ - 1)));
    advance(end + 1 - at_);
  }

  // Python's escapes in string literals.
  std::string unescaped(std::string_view text) const {
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\\' || i + 1 == text.size()) {
        out += text[i];
        continue;
      }
      const char c = text[++i];
      static constexpr std::string_view kFrom = "abfnrtv\\'\"", kTo = "\a\b\f\n\r\t\v\\'\"";
      if (const size_t simple = kFrom.find(c); simple != kFrom.npos) {
        out += kTo[simple];
      } else if (c == '\n') {
        continue;  // a line that goes on
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const size_t count = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        uint32_t value = 0;
        const char* first = text.data() + i + 1;
        const bool enough = i + count < text.size();
        const auto result = std::from_chars(first, first + (enough ? count : 0), value, 16);
        if (!enough || result.ptr != first + count || value > 0x10FFFF)
          fail_here("a broken \\", c, " escape in a string");
        append_utf8(out, value >= 0xD800 && value <= 0xDFFF ? U'\uFFFD' : static_cast<char32_t>(value));
        i += count;
      } else if (c >= '0' && c <= '7') {
        uint32_t value = 0;
        size_t count = 0;
        for (; count < 3 && i + count < text.size() && text[i + count] >= '0' && text[i + count] <= '7'; ++count) {
          value = value * 8 + static_cast<uint32_t>(text[i + count] - '0');
        }
        append_utf8(out, static_cast<char32_t>(value));
        i += count - 1;
      } else {
        out += '\\';
        out += c;
      }
    }
    return out;
  }

  std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // the text that follows begins a line
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

}  // namespace troupe::jinja
