// Text as an endless, seeded stream of packed rows; each piece is a segment of its own. Documents follow each other in
// the epoch's order and are cut where a row ends (pre-training), or stay whole and go into the first row that takes
// them (chats). The position is three numbers, whatever was read before.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/text/tokenizer.h"
#include "training/data_files.h"
#include "training/documents.h"

namespace troupe {

struct TextSourceOptions : DataFileOptions {
  std::string kind = "text";  // "text": plain files; "jsonl": one document a line; "chat": one chat a line, kept whole
  std::string text_field = "text";  // jsonl
  std::string document_separator;   // text: ends a document (and belongs to none); "" see document_bytes
  int64_t document_bytes =
      8192;  // text without separator: cut at blank lines into documents of at least this size; 0: files whole
  int64_t num_tokens_per_row = 512;
  int32_t bos_token_id = -1, eos_token_id = -1;  // put around every document where >= 0
};

/// Where the next row begins: token `token` of document number `document` in the order of epoch `epoch`.
struct TextCursor {
  uint64_t epoch = 0, document = 0, token = 0;
  bool operator==(const TextCursor&) const = default;
};
void to_json(nlohmann::json& json, const TextCursor& cursor);
void from_json(const nlohmann::json& json, TextCursor& cursor);

class ChatDocuments;  // training/chat_documents.h

class TextSource {
 public:
  /// Indexes the files. The tokenizer must outlive the source, and so must `chats`, which kind "chat" needs. Throws
  /// Error: no file, no usable document, a bad line (path and line number); UsageError: an unknown kind or split.
  TextSource(const TextSourceOptions& options, const Tokenizer& tokenizer, const ChatDocuments* chats = nullptr);
  ~TextSource();

  /// The next `num_rows` rows, full ones or, of whole documents, as full as they come; goes on into the next epoch, in
  /// its own order.
  std::vector<LanguageModelBatch> next(int64_t num_rows);
  /// Every document once, in file order, from the first on and up to about `max_tokens`; the last row may be short. For
  /// validation; the cursor stays.
  std::vector<LanguageModelBatch> one_pass(int64_t max_tokens) const;

  TextCursor cursor() const;
  /// Throws Error where the cursor lies outside of this data.
  void seek(const TextCursor& cursor);

  int64_t num_documents() const;          // of this split
  int64_t num_skipped_documents() const;  // white space only (judged on the raw text)
  /// Whole documents so far that were cut to a row, and that had nothing to learn within it (B154).
  int64_t num_truncated() const;
  int64_t num_unlearnable() const;

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace troupe
