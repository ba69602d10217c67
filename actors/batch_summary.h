// What a train batch tells about itself: its metrics, its line of the journal, and the completions worth showing.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>

#include "actors/group_buffer.h"

namespace troupe {

/// Prompt tokens to text; may be empty (then samples carry no prompt).
using TokenText = std::function<std::string(const std::vector<int32_t>&)>;

/// {"metrics": {...}, "journal": {...}, "samples": [...]} of the batch of train step `step` (1-based; it trains version
/// step - 1). Statistics are over samples (rewards, lengths) or sampled tokens (policy age).
nlohmann::json summarize_batch(const GroupBatch& batch, int64_t step, const TokenText& text);

}  // namespace troupe
