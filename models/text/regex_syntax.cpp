// Rewrites the regular expressions of tokenizer files, written for Oniguruma or Rust, into PCRE2's syntax. Differences
// that matter: \s and \w follow Unicode properties there, \p{Han} means the script and not its extensions, and classes
// intersect.
#include <string>
#include <vector>

#include "base/error.h"
#include "models/text/regex.h"

namespace troupe {
namespace {

constexpr std::string_view kWordMembers = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
// Outside of classes Oniguruma counts the small digits and fractions of Latin-1 too.
constexpr std::string_view kWord = "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}]";
constexpr std::string_view kNoWord = "[^\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}]";

class Rewriter {
 public:
  explicit Rewriter(std::string_view pattern) : in_(pattern) {}

  std::string run() {
    std::string out;
    while (at_ < in_.size()) {
      const char c = in_[at_];
      const bool quantifies = c == '*' || c == '+' || c == '?' || c == '{';
      if (!quantifies && c != ')') atom_ = out.size();
      if (c == '\\') {
        escape(out, /*in_class=*/false);
      } else if (c == '[') {
        out += character_class();
      } else if (c == '{') {
        interval(out);
      } else {
        if (c == '(') groups_.push_back(out.size());
        if (c == ')' && !groups_.empty()) {
          atom_ = groups_.back();
          groups_.pop_back();
        }
        out += c;
        ++at_;
      }
    }
    return out;
  }

 private:
  // {n,m}: without n it begins at 0; a + behind it (or ? behind {n}) repeats, where PCRE2 has other meanings.
  void interval(std::string& out) {
    const size_t close = in_.find('}', at_);
    const auto bounds = close == in_.npos ? std::string_view() : in_.substr(at_ + 1, close - at_ - 1);
    if (bounds.empty() || bounds == "," || bounds.find_first_not_of("0123456789,") != bounds.npos) {
      out += in_[at_++];
      return;
    }
    out += concat("{", bounds.front() == ',' ? "0" : "", bounds, "}");
    at_ = close + 1;
    const char next = at_ < in_.size() ? in_[at_] : ' ';
    if (next != '+' && (next != '?' || bounds.find(',') != bounds.npos)) return;
    out.insert(atom_, "(?:");
    out += ')';
  }

  void escape(std::string& out, bool in_class) {
    require(at_ + 1 < in_.size(), "regular expression '", in_, "' ends in a backslash");
    const char c = in_[at_ + 1];
    at_ += 2;
    if (c == 's') {
      out += "\\p{White_Space}";
    } else if (c == 'S') {
      out += "\\P{White_Space}";
    } else if (c == 'w') {
      out += in_class ? kWordMembers : kWord;
    } else if (c == 'W' && !in_class) {
      out += kNoWord;
    } else if ((c == 'b' || c == 'B') && !in_class) {
      const std::string word(kWord);
      const std::string inside = "(?<=" + word + ")(?=" + word + ")", outside = "(?<!" + word + ")(?!" + word + ")";
      out += c == 'B' ? "(?:" + inside + "|" + outside + ")" : "(?!" + inside + "|" + outside + ")";
    } else if (c == 'h' || c == 'H') {  // hexadecimal digits
      const std::string_view digits = "0-9A-Fa-f";
      require(!in_class || c == 'h', "regular expression '", in_, "': \\H inside a class is not supported");
      out += in_class ? std::string(digits) : concat(c == 'h' ? "[" : "[^", digits, "]");
    } else if (c == 'v') {
      out += "\\x0B";
    } else if ((c == 'p' || c == 'P') && at_ < in_.size() && in_[at_] == '{') {
      const size_t close = in_.find('}', at_);
      require(close != std::string_view::npos, "regular expression '", in_, "': a property without its closing brace");
      const auto name = in_.substr(at_ + 1, close - at_ - 1);
      if (const auto members = posix_members(name); c == 'p' && members != name) {
        out += in_class ? std::string(members) : concat("[", members, "]");
      } else {
        property(out, c, name);
      }
      at_ = close + 1;
    } else if (c == 'u' && in_.size() - at_ >= 4 && in_[at_] != '{') {
      out += "\\x{" + std::string(in_.substr(at_, 4)) + "}";
      at_ += 4;
    } else if (c == 'u' && at_ < in_.size() && in_[at_] == '{') {
      out += "\\x";
    } else {
      out += '\\';
      out += c;
    }
  }

  // Classes that hold more than one property; any other name as it is.
  static std::string_view posix_members(std::string_view name) {
    if (name == "Alnum" || name == "alnum") return "\\p{Alphabetic}\\p{Nd}";
    if (name == "Word" || name == "word") return kWordMembers;
    if (name == "Punct" || name == "punct") return "\\p{P}\\p{S}";
    if (name == "alpha") return "\\p{Alphabetic}";
    return name;
  }

  // Names of one or two letters are general categories; the long ones that published files use are mapped; the rest are
  // scripts, which PCRE2 would otherwise read with their extensions.
  static void property(std::string& out, char letter, std::string_view name) {
    static const std::vector<std::pair<std::string_view, std::string_view>> long_names = {
        {"Letter", "L"},
        {"Mark", "M"},
        {"Number", "N"},
        {"Punctuation", "P"},
        {"Symbol", "S"},
        {"Separator", "Z"},
        {"Other", "C"},
        {"Alphabetic", "Alphabetic"},
        {"White_Space", "White_Space"},
        {"Any", "Any"},
        {"Uppercase", "Uppercase"},
        {"Lowercase", "Lowercase"},
        {"Emoji", "Emoji"},
        {"Extended_Pictographic", "Extended_Pictographic"},
        {"Alpha", "Alphabetic"},
        {"Digit", "Nd"},
        {"Space", "White_Space"},
        {"Upper", "Uppercase"},
        {"Lower", "Lowercase"}};
    bool negated = letter == 'P';
    if (!name.empty() && name.front() == '^') {
      negated = !negated;
      name.remove_prefix(1);
    }
    std::string text(name);
    bool known = name.size() <= 2 || name.find('=') != name.npos || name.find(':') != name.npos;
    for (const auto& [from, to] : long_names) {
      if (name == from) {
        text = to;
        known = true;
      }
    }
    out += concat(negated ? "\\P{" : "\\p{", known ? "" : "sc:", text, "}");
  }

  // A class, rewritten as one class, or as lookaheads before one where it holds intersections (&&) or nested classes.
  std::string character_class() {
    require(++depth_ <= 20, "regular expression '", in_, "': classes nested too deep");
    ++at_;
    const bool negated = at_ < in_.size() && in_[at_] == '^';
    if (negated) ++at_;
    struct Part {
      std::string members;              // of a plain class
      std::vector<std::string> nested;  // classes united with them
      std::string pattern() const {
        if (nested.empty()) return "[" + members + "]";
        std::string out = members.empty() ? "" : "[" + members + "]";
        for (const auto& text : nested) out += (out.empty() ? "" : "|") + text;
        return "(?:" + out + ")";
      }
    };
    std::vector<Part> parts(1);
    bool first = true;
    for (;; first = false) {
      require(at_ < in_.size(), "regular expression '", in_, "': a class without its closing bracket");
      const char c = in_[at_];
      if (c == ']' && !first) break;
      if (c == '\\') {
        escape(parts.back().members, /*in_class=*/true);
      } else if (c == '&' && in_.substr(at_, 2) == "&&") {
        at_ += 2;
        parts.emplace_back();
      } else if (c == '[' && in_.substr(at_, 2) == "[:") {
        const size_t close = in_.find(":]", at_);
        require(close != std::string_view::npos, "regular expression '", in_, "': [: without :]");
        const auto name = in_.substr(at_ + 2, close - at_ - 2);
        const auto members = posix_members(name);
        parts.back().members += members == name ? in_.substr(at_, close + 2 - at_) : members;
        at_ = close + 2;
      } else if (c == '[') {
        parts.back().nested.push_back(character_class());
      } else {
        parts.back().members += c == ']' || c == '[' ? std::string("\\") + c : std::string(1, c);
        ++at_;
      }
    }
    ++at_;
    --depth_;
    if (parts.size() == 1 && parts[0].nested.empty()) return (negated ? "[^" : "[") + parts[0].members + "]";
    std::string out;
    for (size_t i = 0; i + 1 < parts.size(); ++i) out += "(?=" + parts[i].pattern() + ")";
    out += parts.back().pattern();
    return negated ? "(?:(?!" + out + ")(?s:.))" : "(?:" + out + ")";
  }

  std::string_view in_;
  size_t at_ = 0;
  size_t atom_ = 0;             // where in the output the latest thing that a quantifier would repeat began
  std::vector<size_t> groups_;  // where the open groups began
  int depth_ = 0;
};

}  // namespace

std::string pcre_pattern(std::string_view pattern) { return Rewriter(pattern).run(); }

}  // namespace troupe
