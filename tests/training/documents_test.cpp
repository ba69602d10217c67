// Documents to language-model rows, and text files to an endless stream of them.
#include "training/documents.h"

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "training/join_rows.h"
#include "training/text_source.h"
#include "tests/doctest.h"

namespace troupe {
namespace {

/// One token a byte.
class ByteTokenizer : public Tokenizer {
 public:
  std::vector<int32_t> encode(std::string_view text, bool) const override {
    std::vector<int32_t> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  std::string decode(const std::vector<int32_t>& ids, bool) const override {
    std::string text;
    for (const auto id : ids) text += static_cast<char>(id);
    return text;
  }
  int64_t vocab_size() const override { return 257; }
  int32_t token_id(std::string_view) const override { return -1; }
  bool is_special(int32_t id) const override { return id == 256; }
  std::string token_bytes(int32_t id) const override { return std::string(1, static_cast<char>(id)); }
};

class TemporaryFile {
 public:
  TemporaryFile(const std::string& name, const std::string& content)
      : path_(std::filesystem::temp_directory_path() / concat("troupe_documents_", getpid(), "_", name)) {
    std::ofstream(path_, std::ios::binary) << content;
  }
  ~TemporaryFile() { std::filesystem::remove(path_); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

std::string texts(const LanguageModelBatch& row) { return ByteTokenizer().decode(row.tokens, false); }

TextSourceOptions options_for(const TemporaryFile& file) {
  TextSourceOptions options;
  options.paths = {file.path()};
  options.document_separator = "|";
  options.shuffle = false;
  options.num_tokens_per_row = 4;
  return options;
}

}  // namespace

TEST_CASE("B153 packed documents are segments of their own and no target crosses the border") {
  const auto packed = pack_documents({{{1, 2, 3}, {}}, {{4, 5}, {}}}, 8);
  REQUIRE(packed.rows.size() == 1);
  const auto& row = packed.rows[0];
  CHECK(row.tokens == std::vector<int32_t>{1, 2, 3, 4, 5});
  CHECK(row.layout.segments.size() == 2);
  CHECK(row.targets == std::vector<int32_t>{2, 3, -1, 5, -1});
  CHECK(row.num_targets() == 3);
}

TEST_CASE("B154 a document whose labels are all cut away is dropped and counted, and none left is an error") {
  const Document long_prompt{std::vector<int32_t>(14, 7), {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1}};
  const Document short_prompt{{1, 2, 3, 4, 5, 6, 7}, {0, 0, 0, 1, 1, 1, 1}};
  const auto packed = pack_documents({long_prompt, short_prompt}, 8);
  CHECK(packed.num_skipped_unlearnable == 1);
  REQUIRE(packed.rows.size() == 1);
  CHECK(packed.rows[0].targets == std::vector<int32_t>{-1, -1, 4, 5, 6, 7, -1});
  CHECK_THROWS_AS(pack_documents({long_prompt}, 8), Error);
}

TEST_CASE("B159 empty documents are skipped and counted") {
  const auto packed = pack_documents({{{}, {}}, {{5}, {}}, {{}, {}}, {{1, 2, 3, 4, 5}, {}}}, 8);
  CHECK(packed.num_skipped_empty == 3);
  CHECK(packed.rows.size() == 1);
  CHECK(packed.rows[0].num_targets() == 4);
  const TemporaryFile file("blank", "|hello||  \n\t|x|");
  const ByteTokenizer tokenizer;
  TextSource source(options_for(file), tokenizer);
  CHECK(source.num_documents() == 2);
  CHECK(source.num_skipped_documents() == 3);
  CHECK(texts(source.next(2)[1]) == "hell");  // a lone token, "o" or "x", predicts nothing
}

TEST_CASE("best fit wastes little and keeps documents whole") {
  std::vector<Document> documents;
  for (int length : {6, 5, 5, 4, 3, 3, 2, 2})
    documents.push_back({std::vector<int32_t>(static_cast<size_t>(length), length), {}});
  const auto packed = pack_documents(documents, 10);
  CHECK(packed.rows.size() == 3);
  for (const auto& row : packed.rows) row.layout.check();
}

TEST_CASE("rows are joined in their order, their segments as they were") {
  LanguageModelBatch shared;  // a beginning that two ends share
  shared.tokens = {1, 2, 3, 4};
  shared.targets = {2, -1, -1, 5};
  shared.layout = {{{0, 2, -1}, {2, 1, 0}, {3, 1, 0}}, 4};
  std::vector<LanguageModelBatch> rows(3);
  append_document(rows[0], {{7, 8}, {}}, 0, 2);
  rows[1] = shared;
  append_document(rows[2], {{9, 10, 11}, {}}, 0, 3);
  for (const auto& [num_rows, lengths] :
       {std::pair{1, std::vector<int32_t>{2, 4, 3}}, {2, {6, 3}}, {3, {9}}, {8, {9}}}) {
    const auto joined = join_rows(rows, num_rows);
    std::vector<int32_t> tokens, got;
    for (const auto& row : joined) {
      row.layout.check();
      got.push_back(row.layout.num_tokens);
      tokens.insert(tokens.end(), row.tokens.begin(), row.tokens.end());
    }
    CHECK(got == lengths);
    CHECK(tokens == std::vector<int32_t>{7, 8, 1, 2, 3, 4, 9, 10, 11});
  }
  const auto whole = join_rows(rows, 3)[0];
  CHECK(whole.targets == std::vector<int32_t>{8, -1, 2, -1, -1, 5, 10, 11, -1});
  CHECK(whole.layout.positions() == std::vector<int32_t>{0, 1, 0, 1, 2, 2, 0, 1, 2});
  CHECK(whole.layout.segments[3].parent == 1);
  rows[1].targets.pop_back();
  CHECK_THROWS_AS(join_rows(rows, 3), Error);
}

TEST_CASE("rows are full, pieces of a document lose no target, and the stream goes on for ever") {
  const TemporaryFile file("stream", "abcdefg|hij");
  const ByteTokenizer tokenizer;
  TextSource source(options_for(file), tokenizer);
  const auto rows = source.next(6);
  std::vector<std::string> seen;
  for (const auto& row : rows) seen.push_back(texts(row));
  CHECK(seen[0] == "abcd");
  CHECK(rows[0].targets == std::vector<int32_t>{'b', 'c', 'd', 'e'});
  CHECK(seen[1] == "efgh");
  CHECK(rows[1].targets == std::vector<int32_t>{'f', 'g', -1, 'i'});
  CHECK(seen[2] == "ijab");
  CHECK(rows[2].targets == std::vector<int32_t>{'j', -1, 'b', 'c'});
  CHECK(rows[2].layout.segments.size() == 2);
}

TEST_CASE("B078 B079 B080 the cursor gives the next row exactly, at an epoch's end, twice resumed, after a loop") {
  std::string content;
  for (int i = 0; i < 9; ++i) content += concat("document number ", i, std::string(static_cast<size_t>(i), 'x'), "|");
  const TemporaryFile file("cursor", content);
  const ByteTokenizer tokenizer;
  auto options = options_for(file);
  options.shuffle = true;
  options.num_tokens_per_row = 11;
  options.eos_token_id = 256;
  TextSource unbroken(options, tokenizer);
  std::vector<LanguageModelBatch> rows;
  std::vector<TextCursor> cursors;
  for (int i = 0; i < 100; ++i) {
    cursors.push_back(unbroken.cursor());
    rows.push_back(unbroken.next(1)[0]);
  }
  CHECK(cursors.back().epoch >= 4);
  for (size_t i = 0; i < rows.size(); ++i) {
    TextSource resumed(options, tokenizer);
    resumed.seek(nlohmann::json(cursors[i]).get<TextCursor>());
    CHECK(resumed.cursor() == cursors[i]);
    CHECK(resumed.next(1)[0].tokens == rows[i].tokens);
  }
  TextSource twice(options, tokenizer);
  twice.next(12);
  auto saved = twice.cursor();
  TextSource second(options, tokenizer);
  second.seek(saved);
  second.next(5);
  TextSource third(options, tokenizer);
  third.seek(second.cursor());
  CHECK(third.next(1)[0].tokens == rows[17].tokens);
  CHECK_THROWS_AS(third.seek({0, 99, 0}), Error);
  CHECK_THROWS_AS(third.seek({0, 0, 9999}), Error);
}

TEST_CASE("training and validation text are disjoint and complete, and validation is one pass") {
  std::string content;
  for (int i = 0; i < 40; ++i) content += concat("text ", i, "\n\n");
  const TemporaryFile file("split", content);
  const ByteTokenizer tokenizer;
  TextSourceOptions options;
  options.paths = {file.path()};
  options.document_bytes = 1;
  options.num_tokens_per_row = 16;
  options.validation_fraction = 0.2;
  options.split = "train";
  const TextSource train(options, tokenizer);
  options.split = "validation";
  const TextSource validation(options, tokenizer);
  CHECK(train.num_documents() + validation.num_documents() == 40);
  CHECK(validation.num_documents() > 0);
  const auto pass = validation.one_pass(1000000);
  int64_t num_tokens = 0;
  for (const auto& row : pass) num_tokens += row.layout.num_tokens;
  CHECK(num_tokens > validation.num_documents() * 5);
  CHECK(validation.one_pass(20).size() <= 2);
  CHECK(validation.cursor() == TextCursor{});
}

TEST_CASE("JSONL text, and what cannot be read") {
  const TemporaryFile file("lines.jsonl", "{\"text\": \"abcde\"}\n{\"text\": \" \"}\n{\"text\": \"fgh\"}\n");
  const ByteTokenizer tokenizer;
  auto options = options_for(file);
  options.kind = "jsonl";
  TextSource source(options, tokenizer);
  CHECK(source.num_documents() == 2);
  CHECK(source.num_skipped_documents() == 1);
  CHECK(texts(source.next(1)[0]) == "abcd");
  options.text_field = "body";
  CHECK_THROWS_WITH_AS(TextSource(options, tokenizer), concat(file.path(), ":1: has no field \"body\"").c_str(), Error);
  const TemporaryFile lone("lone", "a|b|c");
  TextSource nothing(options_for(lone), tokenizer);
  CHECK_THROWS_WITH_AS(nothing.next(1), "no document has two tokens: there is nothing to predict", Error);
}

}  // namespace troupe
