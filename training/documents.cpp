#include "training/documents.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace troupe {
namespace {

bool is_learned(const Document& document, size_t index) {
  return document.loss_mask.empty() || document.loss_mask[index] != 0;
}

}  // namespace

int64_t LanguageModelBatch::num_targets() const {
  return std::count_if(targets.begin(), targets.end(), [](int32_t target) { return target >= 0; });
}

bool cut_document(Document& document, size_t max_tokens) {
  if (document.tokens.size() <= max_tokens) return false;
  document.tokens.resize(max_tokens);
  if (!document.loss_mask.empty()) document.loss_mask.resize(max_tokens);
  return true;
}

bool has_learned_token(const Document& document) {
  if (document.loss_mask.empty()) return !document.tokens.empty();
  return std::find(document.loss_mask.begin(), document.loss_mask.end(), 1) != document.loss_mask.end();
}

void append_document(LanguageModelBatch& row, const Document& document, size_t begin, size_t end) {
  if (begin >= end) return;
  row.layout.segments.push_back({static_cast<int32_t>(row.tokens.size()), static_cast<int32_t>(end - begin), -1});
  for (size_t t = begin; t < end; ++t) {
    row.tokens.push_back(document.tokens[t]);
    const bool has_target = t + 1 < document.tokens.size() && is_learned(document, t + 1);
    row.targets.push_back(has_target ? document.tokens[t + 1] : -1);
  }
  row.layout.num_tokens = static_cast<int32_t>(row.tokens.size());
}

DocumentPacking pack_documents(const std::vector<Document>& documents, int64_t num_tokens_per_row) {
  require(num_tokens_per_row >= 2, "a row of ", num_tokens_per_row, " tokens has no room for a token and its target");
  const auto room = static_cast<size_t>(num_tokens_per_row);
  DocumentPacking result;
  std::vector<std::pair<size_t, size_t>> kept;  // document, tokens
  for (size_t i = 0; i < documents.size(); ++i) {
    const auto& document = documents[i];
    require(document.loss_mask.empty() || document.loss_mask.size() == document.tokens.size(), "document ", i, ": ",
            document.loss_mask.size(), " mask entries for ", document.tokens.size(), " tokens");
    const auto length = std::min(document.tokens.size(), room);
    const bool is_cut = length < document.tokens.size();
    bool has_target = false;
    for (size_t t = 1; t < length && !has_target; ++t) has_target = is_learned(document, t);
    if (document.tokens.size() < 2) {
      ++result.num_skipped_empty;
    } else if (!has_target) {
      ++result.num_skipped_unlearnable;
    } else {
      result.num_truncated += is_cut;
      kept.emplace_back(i, length);
    }
  }
  require(!kept.empty(), "no document to learn from: of ", documents.size(), ", ", result.num_skipped_empty,
          " are empty and ", result.num_skipped_unlearnable, " have nothing to learn within ", num_tokens_per_row,
          " tokens");
  std::stable_sort(kept.begin(), kept.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  for (const auto& [index, length] : kept) {
    LanguageModelBatch* best = nullptr;
    for (auto& row : result.rows)
      if (row.tokens.size() + length <= room && (best == nullptr || row.tokens.size() > best->tokens.size()))
        best = &row;
    if (best == nullptr) best = &result.rows.emplace_back();
    Document cut = documents[index];
    cut_document(cut, length);  // a target beyond the cut would need one more token than the row holds
    append_document(*best, cut, 0, length);
  }
  return result;
}

}  // namespace troupe
