// PCRE2 behind models/text/regex.h: just-in-time compiled where the machine can, interpreted where its stack is too
// small.
#include "models/text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/error.h"

namespace troupe {
namespace {

std::string message_of(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

pcre2_code* compile(const std::string& pattern, uint32_t options, int& error, PCRE2_SIZE& offset) {
  return pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), options, &error, &offset, nullptr);
}

// Match memory of one call: PCRE2's code is shared by threads, this is not.
class MatchMemory {
 public:
  MatchMemory(const pcre2_code* code, uint32_t match_limit)
      : data_(pcre2_match_data_create_from_pattern(code, nullptr)), context_(pcre2_match_context_create(nullptr)) {
    require(data_ != nullptr && context_ != nullptr, "regular expression: out of memory");
    pcre2_set_match_limit(context_, match_limit);
    pcre2_set_heap_limit(context_, 256 * 1024);  // KiB
  }
  ~MatchMemory() {
    pcre2_match_data_free(data_);
    pcre2_match_context_free(context_);
  }
  MatchMemory(const MatchMemory&) = delete;
  MatchMemory& operator=(const MatchMemory&) = delete;
  pcre2_match_data* data() const { return data_; }
  pcre2_match_context* context() const { return context_; }

 private:
  pcre2_match_data* data_;
  pcre2_match_context* context_;
};

}  // namespace

struct Regex::Implementation {
  std::string pattern;
  pcre2_code* code = nullptr;
  bool just_in_time = false;
  uint32_t match_limit = 0;

  ~Implementation() { pcre2_code_free(code); }

  // True on a match. `text` was checked by the caller.
  bool match(std::string_view text, size_t from, MatchMemory& memory) const {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    int result = PCRE2_ERROR_JIT_STACKLIMIT;
    if (just_in_time) {
      result = pcre2_jit_match(code, subject, text.size(), from, PCRE2_NO_UTF_CHECK, memory.data(), memory.context());
    }
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) {
      result = pcre2_match(code, subject, text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, memory.data(),
                           memory.context());
    }
    if (result == PCRE2_ERROR_NOMATCH) return false;
    if (result < 0) fail("regular expression '", pattern, "': ", message_of(result));
    return true;
  }
};

Regex::Regex(const std::string& pattern, const RegexOptions& options)
    : implementation_(std::make_unique<Implementation>()) {
  auto& self = *implementation_;
  self.pattern = pattern;
  self.match_limit = options.match_limit;
  uint32_t flags = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
  if (options.multi_line) flags |= PCRE2_MULTILINE;
  if (options.dot_all) flags |= PCRE2_DOTALL;
  if (options.ignore_case) flags |= PCRE2_CASELESS;
  int error = 0;
  PCRE2_SIZE offset = 0;
  self.code = compile(pattern, flags, error, offset);
  if (self.code == nullptr) fail("regular expression '", pattern, "': ", message_of(error), " at byte ", offset);
  self.just_in_time = pcre2_jit_compile(self.code, PCRE2_JIT_COMPLETE) == 0;
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;

bool Regex::search(std::string_view text, size_t from, std::vector<Span>& groups) const {
  groups.clear();
  MatchMemory memory(implementation_->code, implementation_->match_limit);
  if (!implementation_->match(text, from, memory)) return false;
  const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(memory.data());
  groups.resize(num_groups() + 1);
  for (size_t i = 0; i < groups.size(); ++i) groups[i] = {bounds[2 * i], bounds[2 * i + 1]};
  return true;
}

void Regex::find_all(std::string_view text, std::vector<Span>& matches, bool keep_empty) const {
  matches.clear();
  MatchMemory memory(implementation_->code, implementation_->match_limit);
  const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(memory.data());
  for (size_t from = 0; from < text.size();) {
    if (!implementation_->match(text, from, memory)) return;
    const Span match{bounds[0], bounds[1]};
    if (match.end > match.begin) {
      matches.push_back(match);
      from = match.end;
    } else {  // an empty match: step over one character
      const bool touches = !matches.empty() && matches.back().end == match.end;
      if (keep_empty && !touches) matches.push_back(match);
      from = match.end;
      do {
        ++from;
      } while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xC0) == 0x80);
    }
  }
}

size_t Regex::num_groups() const {
  uint32_t count = 0;
  pcre2_pattern_info(implementation_->code, PCRE2_INFO_CAPTURECOUNT, &count);
  return count;
}

}  // namespace troupe
