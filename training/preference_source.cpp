#include "training/preference_source.h"

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "training/held_out.h"
#include "training/json_lines.h"
#include "training/prompt_source.h"

namespace troupe {
namespace {

uint64_t content_id(const PreferencePair& pair) {
  std::vector<int32_t> content = pair.chosen.tokens;
  content.push_back(-1);
  content.insert(content.end(), pair.rejected.tokens.begin(), pair.rejected.tokens.end());
  return std::stoull(xxh3_128(std::as_bytes(std::span(content))).substr(0, 15), nullptr, 16);
}

}  // namespace

PreferenceSource::PreferenceSource(const PreferenceSourceOptions& options, const ChatDocuments& documents)
    : options_(options) {
  require(!options.paths.empty(), "data.paths is empty: preferences need at least one file");
  std::vector<double> shares;
  const auto& prompt_field = documents.options().prompt_field;
  for (const auto& path : options.paths) {
    const MappedFile file(path);
    const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
    std::vector<std::string> skipped;
    read_json_lines(
        path, text, options.skip_bad_lines,
        [&](const JsonLine& line) {
          for (const auto& field : {prompt_field, options.chosen_field, options.rejected_field}) {
            const auto reason = ChatDocuments::check_messages(line.object, field);
            if (!reason.empty()) return reason;
          }
          PreferencePair pair;
          const auto margin = line.object.find(options.margin_field);
          if (margin != line.object.end() && !margin->is_null()) {
            if (!margin->is_number()) return concat("field \"", options.margin_field, "\" is not a number");
            pair.margin = margin->get<double>();
          }
          const auto record = OrderedJson::parse(line.bytes);
          pair.chosen = documents.encode_answer(record.at(prompt_field), record.at(options.chosen_field));
          pair.rejected = documents.encode_answer(record.at(prompt_field), record.at(options.rejected_field));
          const auto max_tokens = static_cast<size_t>(options.max_tokens);
          const bool chosen_cut = cut_document(pair.chosen, max_tokens);
          const bool rejected_cut = cut_document(pair.rejected, max_tokens);
          if (pair.chosen.tokens == pair.rejected.tokens || !has_learned_token(pair.chosen) ||
              !has_learned_token(pair.rejected)) {
            ++num_identical_;
            return std::string();
          }
          num_truncated_ += chosen_cut || rejected_cut;
          if (pair.chosen.tokens.front() != pair.rejected.tokens.front() || pair.chosen.loss_mask.front() != 0 ||
              pair.rejected.loss_mask.front() != 0)
            return std::string("has an empty prompt");
          pair.id = content_id(pair);
          pairs_.push_back(std::move(pair));
          shares.push_back(held_out_share(line.object.at(prompt_field).dump()));
          return std::string();
        },
        skipped);
    for (const auto& message : skipped) log::warning("skipped ", message);
  }
  require(!pairs_.empty(), options.paths.front(), ": no pair to learn from: of ", num_identical_,
          " none has answers that differ within ", options.max_tokens, " tokens");
  if (num_identical_ > 0) log::warning(num_identical_, " pairs are left out: their answers do not differ");
  std::vector<PreferencePair> kept;
  for (const auto i : members_of_split(options.split, shares, options.validation_fraction))
    kept.push_back(std::move(pairs_[i]));
  pairs_ = std::move(kept);
  open_epoch();
}

void PreferenceSource::open_epoch() {
  order_ = epoch_order(options_.seed, cursor_.epoch, static_cast<uint32_t>(pairs_.size()), options_.shuffle);
}

std::vector<PreferencePair> PreferenceSource::next(int64_t num_pairs) {
  std::vector<PreferencePair> result;
  while (static_cast<int64_t>(result.size()) < num_pairs) {
    result.push_back(pairs_[order_[cursor_.document]]);
    if (++cursor_.document < order_.size()) continue;
    cursor_.document = 0;
    ++cursor_.epoch;
    open_epoch();
  }
  return result;
}

void PreferenceSource::seek(const TextCursor& cursor) {
  require(cursor.document < pairs_.size(), "the data cursor stands at pair ", cursor.document, " of ", pairs_.size(),
          ": the data changed since the checkpoint");
  cursor_ = cursor;
  open_epoch();
}

}  // namespace troupe
