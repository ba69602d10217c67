// Prompts by id from files and from arithmetic.
#include "training/prompt_source.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "training/json_lines.h"
#include "tests/doctest.h"

namespace troupe {
namespace {

/// A file of its own in the temporary folder, removed at the end.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& content) {
    static int counter = 0;
    path_ = std::filesystem::temp_directory_path() / concat("troupe_prompts_", getpid(), "_", counter++, ".jsonl");
    std::ofstream(path_, std::ios::binary) << content;
  }
  ~TemporaryFile() { std::filesystem::remove(path_); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

PromptSourceOptions jsonl(const TemporaryFile& file) {
  PromptSourceOptions options;
  options.paths = {file.path()};
  return options;
}

std::string text_of(const Prompt& prompt) { return prompt.messages.back().second; }

}  // namespace

TEST_CASE("B151 a mark, CRLF, a blank last line or none change no record") {
  const std::vector<std::string> lines = {R"({"text":"a"})", R"({"text":"b"})", R"({"text":"c"})", R"({"text":"d"})"};
  const auto joined = [&](const std::string& end) {
    std::string text;
    for (const auto& line : lines) text += line + end;
    return text;
  };
  for (const auto& content : {joined("\n"), "\xEF\xBB\xBF" + joined("\n"), joined("\r\n"), joined("\n") + "\n",
                              joined("\n").substr(0, joined("\n").size() - 1)}) {
    std::vector<std::string> keys, skipped;
    read_json_lines(
        "file", content, false,
        [&](const JsonLine& line) {
          keys.push_back(line.object.begin().key());
          return std::string();
        },
        skipped);
    CHECK(keys == std::vector<std::string>(4, "text"));
    CHECK(skipped.empty());
  }
}

TEST_CASE("B152 a bad line is an error with its number, or is skipped and counted") {
  std::string content;
  for (int line = 1; line <= 10; ++line)
    content += line == 4   ? "{\"prompt\": \"cut\n"
               : line == 7 ? "[1, 2]\n"
               : line == 9 ? "{\"question\": \"q\"}\n"
                           : concat("{\"prompt\": \"p", line, "\", \"answer\": ", line, "}\n");
  const TemporaryFile file(content);
  auto options = jsonl(file);
  CHECK_THROWS_WITH_AS(make_prompt_source(options), concat(file.path(), ":4: is not JSON").c_str(), Error);
  options.skip_bad_lines = true;
  CHECK(make_prompt_source(options)->size() == 7);
  std::vector<std::string> skipped;
  read_json_lines(
      "f", content, true,
      [](const JsonLine& line) { return std::string(line.object.contains("prompt") ? "" : "has no prompt"); }, skipped);
  CHECK(skipped == std::vector<std::string>{"f:4: is not JSON", "f:7: is not a JSON object", "f:9: has no prompt"});
}

TEST_CASE("a file without a usable record, and no file, say so") {
  const TemporaryFile empty("\n\n");
  CHECK_THROWS_AS(make_prompt_source(jsonl(empty)), Error);
  PromptSourceOptions options;
  CHECK_THROWS_AS(make_prompt_source(options), Error);
  options.paths = {"/nowhere/x.jsonl"};
  CHECK_THROWS_AS(make_prompt_source(options), Error);
  options.kind = "csv";
  CHECK_THROWS_WITH_AS(make_prompt_source(options), R"(data.kind = "csv" is unknown; known: "jsonl", "arithmetic")",
                       UsageError);
}

TEST_CASE("B157 each epoch is a permutation of its own, a rerun repeats it, and ranks are disjoint") {
  std::string content;
  for (int i = 0; i < 20; ++i) content += concat("{\"prompt\": \"", i, "\"}\n");
  const TemporaryFile file(content);
  auto options = jsonl(file);
  options.seed = 1;
  const auto source = make_prompt_source(options), again = make_prompt_source(options);
  std::vector<std::vector<std::string>> epochs(3);
  for (uint64_t id = 0; id < 60; ++id) {
    epochs[id / 20].push_back(text_of(source->at(id)));
    CHECK(text_of(again->at(id)) == epochs[id / 20].back());
  }
  CHECK(epochs[0] != epochs[1]);
  CHECK(epochs[1] != epochs[2]);
  for (const auto& epoch : epochs) {
    CHECK(std::set<std::string>(epoch.begin(), epoch.end()).size() == 20);
    std::set<std::string> ranks[2];
    for (size_t position = 0; position < epoch.size(); ++position) ranks[position % 2].insert(epoch[position]);
    for (const auto& text : ranks[0]) CHECK(ranks[1].count(text) == 0);
  }
  CHECK(text_of(source->at(3)) == epochs[0][3]);  // any order of asking
}

TEST_CASE("records become messages and metadata") {
  const TemporaryFile file("{\"q\": [{\"role\": \"user\", \"content\": \"hi\"}], \"gold\": \"7\", \"level\": 2}\n");
  auto options = jsonl(file);
  options.prompt_field = "q";
  options.answer_field = "gold";
  options.system = "Be brief.";
  const auto prompt = make_prompt_source(options)->at(5);
  CHECK(prompt.id == 5);
  CHECK(prompt.messages == std::vector<std::pair<std::string, std::string>>{{"system", "Be brief."}, {"user", "hi"}});
  CHECK(nlohmann::json::parse(prompt.metadata_json) == nlohmann::json{{"answer", "7"}, {"level", 2}});
}

TEST_CASE("a held-out share of a file and the training share are disjoint and complete, whatever the seed") {
  std::string content;
  for (int i = 0; i < 200; ++i) content += concat("{\"prompt\": \"record ", i % 100, "\"}\n");  // twins
  const TemporaryFile file(content);
  auto training = jsonl(file);
  training.held_out_fraction = 0.25;
  auto held_out = training;
  held_out.held_out = true;
  held_out.seed = 9;
  std::set<std::string> texts[2];
  int which = 0;
  for (const auto& options : {training, held_out}) {
    const auto source = make_prompt_source(options);
    for (uint64_t id = 0; id < source->size(); ++id) texts[which].insert(text_of(source->at(id)));
    ++which;
  }
  for (const auto& text : texts[1]) CHECK(texts[0].count(text) == 0);
  CHECK(texts[0].size() + texts[1].size() == 100);
  CHECK(texts[1].size() > 10);
}

TEST_CASE("arithmetic is a function of seed and id, right, and shares no problem with the held-out set") {
  PromptSourceOptions options;
  options.kind = "arithmetic";
  options.seed = 3;
  options.operators = "+-*";
  auto other = options;
  other.held_out = true;
  other.seed = 4;
  const auto training = make_prompt_source(options), again = make_prompt_source(options);
  const auto held_out = make_prompt_source(other);
  std::set<std::string> seen;
  double sum = 0;
  for (uint64_t id = 0; id < 2000; ++id) {
    const auto prompt = training->at(id);
    CHECK(text_of(again->at(id)) == text_of(prompt));
    seen.insert(text_of(prompt));
    int64_t a = 0, b = 0;
    char op = 0;
    REQUIRE(std::sscanf(text_of(prompt).c_str(), "What is %ld %c %ld?", &a, &op, &b) == 3);
    REQUIRE((a >= 0 && a <= 99 && b >= 0 && b <= 99));
    const auto answer = op == '+' ? a + b : op == '-' ? a - b : a * b;
    CHECK(nlohmann::json::parse(prompt.metadata_json) == nlohmann::json{{"answer", std::to_string(answer)}});
    sum += static_cast<double>(a);
  }
  CHECK(sum / 2000 == doctest::Approx(49.5).epsilon(0.05));
  for (uint64_t id = 0; id < 500; ++id) CHECK(seen.count(text_of(held_out->at(id))) == 0);
}

TEST_CASE("arithmetic of a stated size repeats its problems in another order") {
  PromptSourceOptions options;
  options.kind = "arithmetic";
  options.size = 50;
  const auto source = make_prompt_source(options);
  CHECK(source->size() == 50);
  std::vector<std::string> epochs[2];
  for (uint64_t id = 0; id < 100; ++id) epochs[id / 50].push_back(text_of(source->at(id)));
  CHECK(epochs[0] != epochs[1]);
  for (auto& epoch : epochs) std::sort(epoch.begin(), epoch.end());
  CHECK(epochs[0] == epochs[1]);
}

}  // namespace troupe
