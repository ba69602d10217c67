// From rows of text to micro-batches.
#pragma once

#include "training/documents.h"

namespace troupe {

/// Neighbouring rows joined, `num_rows` into one (the last of fewer), for one forward and backward each. Segments stay
/// what they are, so no loss changes. Throws Error on a row whose tokens, targets and layout differ in length.
std::vector<LanguageModelBatch> join_rows(const std::vector<LanguageModelBatch>& rows, int64_t num_rows);

}  // namespace troupe
