// SentencePiece's own model file (tokenizer.model), run by its own library (Kudo and Richardson 2018): byte-pair and
// unigram models, with the normalisation that the file holds.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "models/text/added_tokens.h"
#include "models/text/tokenizer.h"

namespace troupe {

struct SentencePieceOptions {
  std::vector<AddedToken> added_tokens;  // beside the file's own control symbols
  bool add_bos = true, add_eos = false;  // what add_special_tokens does
  /// Every text between added tokens begins with the dummy space, not only the first one (transformers' `legacy`).
  bool legacy = true;
};

/// Throws Error where the bytes are no SentencePiece model.
std::unique_ptr<Tokenizer> parse_sentencepiece(std::string_view model, SentencePieceOptions options);

}  // namespace troupe
