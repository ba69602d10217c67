// Pairs of a better and a worse answer to one prompt, as tokens, in an endless, seeded order whose position is two
// numbers.
#pragma once

#include "training/chat_documents.h"
#include "training/text_source.h"

namespace troupe {

/// Both documents begin with the prompt; the loss mask is 1 on the answer, whose last token ends the document.
struct PreferencePair {
  uint64_t id = 0;  // of the content: equal pairs have one
  Document chosen, rejected;
  double margin = 0;
};

struct PreferenceSourceOptions : DataFileOptions {  // split: by a hash of the prompt
  std::string chosen_field = "chosen", rejected_field = "rejected", margin_field = "margin";
  int64_t max_tokens = 2048;  // of prompt and answer; what is longer is cut
};

class PreferenceSource {
 public:
  /// Reads and encodes the files. Throws Error: no file, a bad line (path and line number), no pair that differs;
  /// UsageError: an unknown split.
  PreferenceSource(const PreferenceSourceOptions& options, const ChatDocuments& documents);

  /// The next pairs; goes on into the next epoch, in its own order.
  std::vector<PreferencePair> next(int64_t num_pairs);
  /// Every pair of the split, in file order.
  const std::vector<PreferencePair>& pairs() const { return pairs_; }

  TextCursor cursor() const { return cursor_; }
  /// Throws Error where the cursor lies outside of this data.
  void seek(const TextCursor& cursor);

  /// Pairs left out because their answers do not differ (as written, or once they are cut; B022).
  int64_t num_identical() const { return num_identical_; }
  int64_t num_truncated() const { return num_truncated_; }  // cut and still different

 private:
  void open_epoch();

  PreferenceSourceOptions options_;
  std::vector<PreferencePair> pairs_;
  int64_t num_identical_ = 0, num_truncated_ = 0;
  TextCursor cursor_;
  std::vector<uint32_t> order_;  // of the cursor's epoch
};

}  // namespace troupe
