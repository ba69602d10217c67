// Normalizers of tokenizer.json: what happens to the text before it is split.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>

#include "models/text/aligned_text.h"

namespace troupe {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  /// `track` keeps the alignment with the original through the change.
  virtual void apply(AlignedText& text, bool track) const = 0;
};

/// Null for a JSON null. Throws Error naming a type that is not known.
std::unique_ptr<Normalizer> parse_normalizer(const nlohmann::json& json);

/// The pattern of Replace and Split: {"String": literal} or {"Regex": expression}, as a compiled expression.
Regex parse_pattern(const nlohmann::json& json);

}  // namespace troupe
