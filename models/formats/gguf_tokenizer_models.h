// The parts of a tokenizer.json that depend on the kind of a GGUF file's vocabulary: normalizer, pre-tokenizer, model,
// decoder. No torch.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/formats/gguf_header.h"
#include "models/formats/gguf_pre_tokenizer.h"

namespace troupe {

/// Tokens with their kinds, checked; the vocabulary and the added tokens of a tokenizer.json.
struct GgufVocabulary {
  std::vector<std::string_view> tokens;
  std::vector<int64_t> kinds;
  nlohmann::json ids = nlohmann::json::object();
  nlohmann::json added = nlohmann::json::array();
};

GgufVocabulary read_gguf_vocabulary(const GgufHeader& header);

/// Text of the token that a metadata key (else the fallback) points to, nullopt where there is none.
std::optional<std::string> gguf_special_token(const GgufHeader& header, const std::vector<std::string_view>& tokens,
                                              const char* key, int64_t fallback = -1);

/// BPE with listed merges (they take the vocabulary's ids), SentencePiece's BPE by scores (so does this), BERT's
/// WordPiece, T5's unigram model. Throw Error naming the key that is missing or wrong.
nlohmann::json byte_pair_parts(const GgufHeader& header, const GgufPreTokenizer& scheme, GgufVocabulary& vocabulary);
nlohmann::json sentencepiece_parts(const GgufHeader& header, GgufVocabulary& vocabulary);
nlohmann::json word_piece_parts(const GgufHeader& header, const GgufVocabulary& vocabulary);
nlohmann::json unigram_parts(const GgufHeader& header, const GgufVocabulary& vocabulary);

}  // namespace troupe
