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

class Rewriter {
 public:
  explicit Rewriter(std::string_view pattern) : in_(pattern) {}

  std::string run() {
    std::string out;
    while (at_ < in_.size()) {
      const char c = in_[at_];
      if (c == '\\') {
        escape(out, /*in_class=*/false);
      } else if (c == '[') {
        out += character_class();
      } else {
        out += c;
        ++at_;
      }
    }
    return out;
  }

 private:
  void escape(std::string& out, bool in_class) {
    require(at_ + 1 < in_.size(), "regular expression '", in_, "' ends in a backslash");
    const char c = in_[at_ + 1];
    at_ += 2;
    if (c == 's') {
      out += "\\p{White_Space}";
    } else if (c == 'S') {
      out += "\\P{White_Space}";
    } else if (c == 'w') {
      out += in_class ? std::string(kWordMembers) : "[" + std::string(kWordMembers) + "]";
    } else if (c == 'W' && !in_class) {
      out += "[^" + std::string(kWordMembers) + "]";
    } else if ((c == 'p' || c == 'P') && at_ < in_.size() && in_[at_] == '{') {
      const size_t close = in_.find('}', at_);
      require(close != std::string_view::npos, "regular expression '", in_, "': a property without its closing brace");
      property(out, c, in_.substr(at_ + 1, close - at_ - 1));
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
        {"Lower", "Lowercase"},
        {"Punct", "P"}};
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
        parts.back().members += in_.substr(at_, close + 2 - at_);
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
  int depth_ = 0;
};

}  // namespace

std::string pcre_pattern(std::string_view pattern) { return Rewriter(pattern).run(); }

}  // namespace troupe
