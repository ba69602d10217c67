// Normalizers that came with models before byte-level vocabularies: BERT's clean-up, and SentencePiece's table of
// replacements with the filter that goes before it.
#pragma once

#include <memory>

#include "models/text/normalizer.h"

namespace troupe {

std::unique_ptr<Normalizer> make_bert_normalizer(const nlohmann::json& json);
/// `Nmt`: control characters go, odd spaces become spaces.
std::unique_ptr<Normalizer> make_nmt_normalizer();
/// `Precompiled`: base64 of SentencePiece's precompiled_charsmap. Throws Error where it is not one.
std::unique_ptr<Normalizer> make_precompiled_normalizer(const nlohmann::json& json);

}  // namespace troupe
