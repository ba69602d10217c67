#include "training/join_rows.h"

#include "base/error.h"

namespace troupe {

std::vector<LanguageModelBatch> join_rows(const std::vector<LanguageModelBatch>& rows, int64_t num_rows) {
  require(num_rows > 0, "rows are joined one by one at least, not ", num_rows);
  std::vector<LanguageModelBatch> joined;
  for (size_t r = 0; r < rows.size(); ++r) {
    const auto& row = rows[r];
    require(row.tokens.size() == row.targets.size() && static_cast<size_t>(row.layout.num_tokens) == row.tokens.size(),
            "a row of ", row.tokens.size(), " tokens has ", row.targets.size(), " targets and a layout of ",
            row.layout.num_tokens);
    if (r % static_cast<size_t>(num_rows) == 0) joined.emplace_back();
    auto& whole = joined.back();
    const auto first_segment = static_cast<int32_t>(whole.layout.segments.size());
    for (auto segment : row.layout.segments) {
      segment.begin += whole.layout.num_tokens;
      if (segment.parent >= 0) segment.parent += first_segment;
      whole.layout.segments.push_back(segment);
    }
    whole.tokens.insert(whole.tokens.end(), row.tokens.begin(), row.tokens.end());
    whole.targets.insert(whole.targets.end(), row.targets.begin(), row.targets.end());
    whole.layout.num_tokens += row.layout.num_tokens;
  }
  return joined;
}

}  // namespace troupe
