#include "training/text_source.h"

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "training/chat_documents.h"
#include "training/choices.h"
#include "training/held_out.h"
#include "training/json_lines.h"
#include "training/prompt_source.h"

namespace troupe {
namespace {

enum class Kind { kText, kJsonl, kChat };

bool is_blank(std::string_view text) { return text.find_first_not_of(" \t\r\n\f\v") == std::string_view::npos; }

/// Cuts `text` at every separator, or at blank lines into pieces of at least `document_bytes`.
std::vector<std::string_view> split_documents(std::string_view text, const TextSourceOptions& options) {
  std::vector<std::string_view> documents;
  if (options.document_separator.empty() && options.document_bytes <= 0) return {text};
  const std::string_view mark =
      options.document_separator.empty() ? "\n\n" : std::string_view(options.document_separator);
  const auto least = options.document_separator.empty() ? static_cast<size_t>(options.document_bytes) : 0;
  while (!text.empty()) {
    const auto found = text.find(mark, least);
    // A separator belongs to no document; a blank line stays with the text before it.
    const auto end = found == std::string_view::npos ? text.size() : found + (least > 0 ? mark.size() : 0);
    documents.push_back(text.substr(0, end));
    text.remove_prefix(found == std::string_view::npos ? text.size() : found + mark.size());
  }
  return documents;
}

}  // namespace

struct TextSource::Implementation {
  Implementation(const TextSourceOptions& wanted, const Tokenizer& tokenizer, const ChatDocuments* chats)
      : options(wanted),
        tokenizer(tokenizer),
        chats(chats),
        kind(choose<Kind>("data.kind", wanted.kind,
                          {{"text", Kind::kText}, {"jsonl", Kind::kJsonl}, {"chat", Kind::kChat}})) {
    require(kind != Kind::kChat || chats != nullptr, "chats need a reader of chats");
    require(!options.paths.empty(), "data.paths is empty: at least one file of text is needed");
    require(options.num_tokens_per_row >= 2, "a row of ", options.num_tokens_per_row,
            " tokens has no room for a target");
    for (const auto& path : options.paths) index(path);
    require(!documents.empty(), "no document with text in ", options.paths.front(),
            options.paths.size() > 1 ? concat(" and ", options.paths.size() - 1, " more") : "", " (", num_skipped,
            " blank ones)");
    std::vector<std::string_view> kept;
    for (const auto i : members_of_split(options.split, shares, options.validation_fraction))
      kept.push_back(documents[i]);
    documents = std::move(kept);
    require(documents.size() <= UINT32_MAX, "more than 2^32 documents");
    open_epoch();
  }

  void index(const std::string& path) {
    files.push_back(std::make_unique<MappedFile>(path));
    const std::string_view text(reinterpret_cast<const char*>(files.back()->bytes().data()),
                                files.back()->bytes().size());
    if (kind == Kind::kText) {
      for (const auto document : split_documents(text, options)) add(document, document);
      return;
    }
    std::vector<std::string> skipped;
    read_json_lines(
        path, text, options.skip_bad_lines,
        [&](const JsonLine& line) {
          if (kind == Kind::kChat) {
            auto reason = chats->check(line.object);
            if (reason.empty()) add(line.bytes, line.bytes);
            return reason;
          }
          const auto field = line.object.find(options.text_field);
          if (field == line.object.end()) return concat("has no field \"", options.text_field, "\"");
          if (!field->is_string()) return concat("field \"", options.text_field, "\" is not a text");
          add(line.bytes, field->get_ref<const std::string&>());
          return std::string();
        },
        skipped);
    for (const auto& message : skipped) log::warning("skipped ", message);
  }

  /// `bytes` is what is kept (a span of the file), `text` what they say.
  void add(std::string_view bytes, std::string_view text) {
    if (is_blank(text)) {
      ++num_skipped;
      return;
    }
    documents.push_back(bytes);
    shares.push_back(held_out_share(text));
  }

  Document read(size_t index) const {
    if (kind == Kind::kChat) return chats->encode(OrderedJson::parse(documents[index]));
    std::string text;
    if (kind == Kind::kText)
      text = documents[index];
    else
      text = nlohmann::json::parse(documents[index]).at(options.text_field).get<std::string>();
    Document document;
    document.tokens = tokenizer.encode(text, /*add_special_tokens=*/false);
    if (options.bos_token_id >= 0) document.tokens.insert(document.tokens.begin(), options.bos_token_id);
    if (options.eos_token_id >= 0) document.tokens.push_back(options.eos_token_id);
    return document;
  }

  void open_epoch() {
    order = epoch_order(options.seed, cursor.epoch, static_cast<uint32_t>(documents.size()), options.shuffle);
    is_loaded = false;
  }

  /// The document under the cursor.
  const Document& current() {
    if (!is_loaded) document = read(order[cursor.document]);
    is_loaded = true;
    return document;
  }

  void leave_document() {
    cursor.token = 0;
    is_loaded = false;
    if (++cursor.document < order.size()) return;
    cursor.document = 0;
    ++cursor.epoch;
    open_epoch();
  }

  LanguageModelBatch next_row() {
    LanguageModelBatch row;
    const auto room = static_cast<size_t>(options.num_tokens_per_row);
    size_t num_useless = 0;
    while (row.tokens.size() < room) {
      const auto& tokens = current().tokens;
      const size_t left =
          cursor.token + 1 < tokens.size() ? tokens.size() - cursor.token : 0;  // a lone token predicts nothing
      const size_t taken = std::min(left, room - row.tokens.size());
      num_useless = taken == 0 ? num_useless + 1 : 0;
      require(num_useless <= documents.size(), "no document has two tokens: there is nothing to predict");
      append_document(row, document, cursor.token, cursor.token + taken);
      cursor.token += taken;
      if (cursor.token + 1 >= tokens.size()) leave_document();
    }
    return row;
  }

  /// Whole documents, each into the first row that takes it, until one fits nowhere; that one begins the next step.
  std::vector<LanguageModelBatch> next_whole(int64_t num_rows) {
    std::vector<LanguageModelBatch> rows(static_cast<size_t>(num_rows));
    const auto room = static_cast<size_t>(options.num_tokens_per_row);
    size_t num_useless = 0;
    while (true) {
      current();
      const bool is_cut = cut_document(document, room);
      if (!has_learned_token(document)) {
        ++num_unlearnable;
        require(++num_useless <= documents.size(), "no document has a token to learn within ", room, " tokens");
        leave_document();
        continue;
      }
      const auto row = std::find_if(rows.begin(), rows.end(), [&](const LanguageModelBatch& candidate) {
        return candidate.tokens.size() + document.tokens.size() <= room;
      });
      if (row == rows.end()) return rows;
      num_truncated += is_cut;
      num_useless = 0;
      append_document(*row, document, 0, document.tokens.size());
      leave_document();
    }
  }

  TextSourceOptions options;
  const Tokenizer& tokenizer;
  const ChatDocuments* chats;
  Kind kind;
  std::vector<std::unique_ptr<MappedFile>> files;
  std::vector<std::string_view> documents;  // into the files: a text, or a line of JSONL
  std::vector<double> shares;
  int64_t num_skipped = 0, num_truncated = 0, num_unlearnable = 0;
  TextCursor cursor;
  std::vector<uint32_t> order;  // of cursor.epoch
  Document document;            // of the cursor, where is_loaded
  bool is_loaded = false;
};

TextSource::TextSource(const TextSourceOptions& options, const Tokenizer& tokenizer, const ChatDocuments* chats)
    : implementation_(std::make_unique<Implementation>(options, tokenizer, chats)) {}
TextSource::~TextSource() = default;

std::vector<LanguageModelBatch> TextSource::next(int64_t num_rows) {
  if (implementation_->kind == Kind::kChat) return implementation_->next_whole(num_rows);
  std::vector<LanguageModelBatch> rows;
  for (int64_t i = 0; i < num_rows; ++i) rows.push_back(implementation_->next_row());
  return rows;
}

std::vector<LanguageModelBatch> TextSource::one_pass(int64_t max_tokens) const {
  int64_t num_tokens = 0;
  if (implementation_->kind == Kind::kChat) {
    std::vector<Document> documents;
    for (size_t i = 0; i < implementation_->documents.size() && num_tokens < max_tokens; ++i) {
      documents.push_back(implementation_->read(i));
      num_tokens += static_cast<int64_t>(documents.back().tokens.size());
    }
    return pack_documents(documents, implementation_->options.num_tokens_per_row).rows;
  }
  std::vector<LanguageModelBatch> rows;
  const auto room = static_cast<size_t>(implementation_->options.num_tokens_per_row);
  for (size_t i = 0; i < implementation_->documents.size() && num_tokens < max_tokens; ++i) {
    const auto document = implementation_->read(i);
    for (size_t begin = 0; begin + 1 < document.tokens.size() && num_tokens < max_tokens;) {
      if (rows.empty() || rows.back().tokens.size() == room) rows.emplace_back();
      const size_t taken = std::min(document.tokens.size() - begin, room - rows.back().tokens.size());
      append_document(rows.back(), document, begin, begin + taken);
      begin += taken;
      num_tokens += static_cast<int64_t>(taken);
    }
  }
  return rows;
}

TextCursor TextSource::cursor() const { return implementation_->cursor; }

void TextSource::seek(const TextCursor& cursor) {
  auto& state = *implementation_;
  require(cursor.document < state.documents.size(), "the data cursor stands at document ", cursor.document, " of ",
          state.documents.size(), ": the data changed since the checkpoint");
  state.cursor = cursor;
  state.open_epoch();
  require(cursor.token == 0 || cursor.token < state.current().tokens.size(), "the data cursor stands at token ",
          cursor.token, " of ", state.current().tokens.size(), ": the data changed since the checkpoint");
}

int64_t TextSource::num_documents() const { return static_cast<int64_t>(implementation_->documents.size()); }
int64_t TextSource::num_skipped_documents() const { return implementation_->num_skipped; }
int64_t TextSource::num_truncated() const { return implementation_->num_truncated; }
int64_t TextSource::num_unlearnable() const { return implementation_->num_unlearnable; }

void to_json(nlohmann::json& json, const TextCursor& cursor) {
  json = {{"epoch", cursor.epoch}, {"document", cursor.document}, {"token", cursor.token}};
}

void from_json(const nlohmann::json& json, TextCursor& cursor) {
  json.at("epoch").get_to(cursor.epoch);
  json.at("document").get_to(cursor.document);
  json.at("token").get_to(cursor.token);
}

}  // namespace troupe
