// Chats and prompt/completion records as documents: what is learned (B038, B039), how rows are filled, what is left
// out.
#include "training/chat_documents.h"

#include <fstream>

#include "base/error.h"
#include "tests/doctest.h"
#include "tests/training/smollm2_tokenizer.h"
#include "training/text_source.h"

namespace troupe {
namespace {

using testing::smollm2;

constexpr const char* kChatMl =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

struct Chats {
  explicit Chats(ChatDocumentOptions options = {}, bool has_template = true)
      : documents(*tokenizer, has_template ? &chat : nullptr, nlohmann::json::object(), 2, std::move(options)) {}

  std::string learned(const Document& document) const {
    std::vector<int32_t> ids;
    for (size_t i = 0; i < document.tokens.size(); ++i)
      if (document.loss_mask[i] != 0) ids.push_back(document.tokens[i]);
    return tokenizer->decode(ids, false);
  }
  std::string text(const Document& document) const { return tokenizer->decode(document.tokens, false); }

  const Tokenizer* tokenizer = smollm2();
  ChatTemplate chat{kChatMl};
  ChatDocuments documents;
};

OrderedJson three_turns() {
  auto messages = OrderedJson::array();
  for (const char* answer : {"one", "two", "three"}) {
    messages.push_back({{"role", "user"}, {"content", "Next?"}});
    messages.push_back({{"role", "assistant"}, {"content", answer}});
  }
  messages.push_back({{"role", "user"}, {"content", "Thanks."}});
  return {{"messages", messages}};
}

/// A file of JSONL that is gone at the end of the test.
struct Lines {
  explicit Lines(const std::string& name, const std::vector<nlohmann::json>& records)
      : path((std::filesystem::temp_directory_path() / name).string()) {
    std::ofstream out(path);
    for (const auto& record : records) out << record.dump() << '\n';
  }
  ~Lines() { std::filesystem::remove(path); }
  std::string path;
};

nlohmann::json question(int number) {
  return {{"prompt", "Say " + std::to_string(number)}, {"completion", "It is " + std::to_string(number) + "."}};
}

}  // namespace

TEST_CASE("B038 B039 every turn of the assistant is learned with its end token, or the last alone") {
  const Chats all;
  const auto document = all.documents.encode(three_turns());
  CHECK(all.learned(document) == "one<|im_end|>two<|im_end|>three<|im_end|>");
  CHECK(document.loss_mask.back() == 1);  // the user's last turn teaches nothing and is not computed
  ChatDocumentOptions last_turn;
  last_turn.turns = AssistantTurns::kLast;
  const Chats last(last_turn);
  CHECK(last.learned(last.documents.encode(three_turns())) == "three<|im_end|>");
}

TEST_CASE("a prompt and its completion are a turn each, with the system turn before them") {
  ChatDocumentOptions brief;
  brief.system = "Be brief.";
  const Chats chats(brief);
  const auto document = chats.documents.encode(OrderedJson(question(7)));
  CHECK(chats.text(document) ==
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nSay 7<|im_end|>\n<|im_start|>assistant\nIt is "
        "7.<|im_end|>");
  CHECK(chats.learned(document) == "It is 7.<|im_end|>");
}

TEST_CASE("without a template a completion stands behind its prompt and ends the sequence") {
  const Chats chats({}, false);
  const auto document = chats.documents.encode(OrderedJson(question(7)));
  CHECK(chats.text(document) == "Say 7It is 7.<|im_end|>");  // id 2, the end of sequence
  CHECK(chats.learned(document) == "It is 7.<|im_end|>");
  CHECK(chats.documents.check(nlohmann::json(three_turns())).find("no chat template") != std::string::npos);
}

TEST_CASE("records of no use say why") {
  const Chats chats;
  const auto reason = [&](const nlohmann::json& record) { return chats.documents.check(record); };
  CHECK(reason(question(1)) == "");
  CHECK(reason({{"prompt", "a"}}).find("completion") != std::string::npos);
  CHECK(reason({{"text", "a"}}).find("messages") != std::string::npos);
  CHECK(reason({{"messages", "a"}}).find("messages") != std::string::npos);
  CHECK(reason({{"messages", nlohmann::json::array()}}) != "");
  CHECK(reason({{"prompt", 3}, {"completion", "b"}}).find("prompt") != std::string::npos);
}

TEST_CASE("whole chats fill rows without crossing them, and the position resumes") {
  std::vector<nlohmann::json> records;
  for (int i = 0; i < 40; ++i) records.push_back(question(i * 37));
  const Lines file("troupe_chats.jsonl", records);
  const Chats chats;
  TextSourceOptions options;
  options.kind = "chat";
  options.paths = {file.path};
  options.num_tokens_per_row = 64;
  options.seed = 5;
  TextSource source(options, *chats.tokenizer, &chats.documents);
  CHECK(source.num_documents() == 40);
  size_t num_documents = 0;
  for (int step = 0; step < 6; ++step) {
    const auto before = source.cursor();
    const auto rows = source.next(2);
    REQUIRE(rows.size() == 2);
    for (const auto& row : rows) {
      CHECK(row.tokens.size() <= 64);
      num_documents += row.layout.segments.size();
      for (const auto& segment : row.layout.segments) {
        CHECK(row.tokens[static_cast<size_t>(segment.begin)] == 1);  // each begins with <|im_start|>: none is a piece
        CHECK(row.targets[static_cast<size_t>(segment.begin + segment.length - 1)] == -1);
      }
    }
    TextSource again(options, *chats.tokenizer, &chats.documents);
    again.seek(before);
    const auto repeated = again.next(2);
    CHECK(repeated[0].tokens == rows[0].tokens);
    CHECK(repeated[1].targets == rows[1].targets);
  }
  CHECK(num_documents >= 20);
  const auto whole = source.one_pass(1 << 20);
  size_t num_segments = 0;
  for (const auto& row : whole) num_segments += row.layout.segments.size();
  CHECK(num_segments == 40);
}

TEST_CASE("B154 a chat without anything to learn in its row is left out and counted") {
  const std::string long_prompt(600, 'x');
  const Lines file("troupe_long_chats.jsonl",
                   {question(1), {{"prompt", long_prompt}, {"completion", "y"}}, question(2)});
  const Chats chats;
  TextSourceOptions options;
  options.kind = "chat";
  options.paths = {file.path};
  options.num_tokens_per_row = 32;
  options.shuffle = false;
  TextSource source(options, *chats.tokenizer, &chats.documents);
  const auto rows = source.next(2);
  CHECK(rows[0].layout.segments.size() + rows[1].layout.segments.size() == 2);
  CHECK(source.num_unlearnable() == 1);
  options.num_tokens_per_row = 4;
  TextSource none(options, *chats.tokenizer, &chats.documents);
  CHECK_THROWS_AS(none.next(1), Error);
}

}  // namespace troupe
