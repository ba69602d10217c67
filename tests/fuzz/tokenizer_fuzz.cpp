// Any bytes given as a tokenizer.json or a tiktoken file: an error, or a tokenizer that encodes and decodes, never a
// crash.
#include "base/error.h"
#include "models/text/tiktoken.h"
#include "models/text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  try {
    const auto tokenizer = troupe::parse_tokenizer(
        troupe::is_tiktoken(file) ? troupe::tiktoken_json(file, "qwen.tiktoken", nlohmann::json::array()).dump()
                                  : std::string(file));
    const std::string text = "Hi  there, \u00fc\u4e16\U0001f389 12345\n\xff<s>e\u0301";
    const auto ids = tokenizer->encode(text, true);
    tokenizer->decode(ids, false);
    tokenizer->encode_with_spans("a b\u00e9", false);
    troupe::IncrementalDecoder stream(*tokenizer, true);
    for (const int32_t id : ids) stream.push(id);
    stream.finish();
  } catch (const troupe::Error&) {
  }
  return 0;
}
