// From tokenised documents to packed language-model rows. Each document is a segment of its own: it sees no other, its
// positions begin at 0, and no target crosses its end (B153).
#pragma once

#include <cstdint>
#include <vector>

#include "models/layout.h"

namespace troupe {

/// One packed row for language modelling: targets[t] is the token after t inside its document, -1 where there is none
/// or where it is not to be learned.
struct LanguageModelBatch {
  std::vector<int32_t> tokens, targets;
  PackedLayout layout;

  int64_t num_targets() const;
};

/// A document that stays in one piece, such as a chat or a prompt with its completion.
struct Document {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> loss_mask;  // [L] 1 where the token is learned; empty: all
};

/// Keeps the first `max_tokens` tokens; true where something was cut.
bool cut_document(Document& document, size_t max_tokens);
/// True where some token is to be learned.
bool has_learned_token(const Document& document);

struct DocumentPacking {
  std::vector<LanguageModelBatch> rows;
  int64_t num_skipped_empty = 0;        // fewer than two tokens: nothing to predict (B159)
  int64_t num_skipped_unlearnable = 0;  // no token to learn is left within the row's length (B154)
  int64_t num_truncated = 0;            // cut, and still learned from
};

/// Best fit, longest first: each document goes into the fullest row that still takes it; rows of at most
/// `num_tokens_per_row` tokens, documents longer than that are cut. Throws Error where no document is left.
DocumentPacking pack_documents(const std::vector<Document>& documents, int64_t num_tokens_per_row);

/// Appends tokens [begin, end) of a document as a segment of its own; `end` < size takes the token at `end` as the last
/// target.
void append_document(LanguageModelBatch& row, const Document& document, size_t begin, size_t end);

}  // namespace troupe
