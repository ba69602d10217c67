// SmolLM2's tokenizer from the fixtures, read once.
#pragma once

#include "base/file.h"
#include "models/text/tokenizer.h"

namespace troupe::testing {

inline const Tokenizer* smollm2() {
  static const auto tokenizer =
      parse_tokenizer(read_file(TROUPE_SOURCE_DIR "/tests/fixtures/tokenizer/smollm2.tokenizer.json"));
  return tokenizer.get();
}

}  // namespace troupe::testing
