// Pre-tokenizers of tokenizer.json: where the text is cut before merges, which never cross a cut.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "models/text/aligned_text.h"

namespace troupe {

/// A text and the pieces it is cut into, in order; nothing lies between two pieces but what was removed.
struct PieceList {
  AlignedText text;
  std::vector<Span> pieces;
  bool at_start = false;  // the text is the beginning of the user's text
  bool track = false;     // keep the alignment
};

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void apply(PieceList& list) const = 0;
};

struct PreTokenizerChain {
  std::vector<std::unique_ptr<PreTokenizer>> steps;
  bool byte_level = false;  // the pieces' bytes stand for characters of the byte alphabet: the last step is ByteLevel
};

/// An empty chain for a JSON null. Throws Error naming a type that is not known.
PreTokenizerChain parse_pre_tokenizer(const nlohmann::json& json);

}  // namespace troupe
