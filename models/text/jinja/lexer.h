// Cuts a template into text and tokens, with transformers' settings: trim_blocks, lstrip_blocks, no trailing newline.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::jinja {

enum class TokenKind {
  kText,
  kBlockBegin,
  kBlockEnd,
  kVariableBegin,
  kVariableEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;  // of strings: unescaped
  int line = 1;
  int64_t integer = 0;
  double number = 0;
};

/// The last token is kEnd. Throws Error with the line.
std::vector<Token> tokenize(std::string_view source);

}  // namespace troupe::jinja
