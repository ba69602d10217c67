// Replays tokenizer/ and chat_template/ of the fixtures (tests/fixtures/README.md), or of the folder that
// TROUPE_FIXTURES names.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "base/file.h"
#include "models/text/chat_template.h"
#include "models/text/tokenizer.h"
#include "tests/doctest.h"

using namespace troupe;
namespace fs = std::filesystem;

namespace {

fs::path fixtures_folder() {
  const char* folder = std::getenv("TROUPE_FIXTURES");
  return folder != nullptr && *folder != 0 ? fs::path(folder) : fs::path(TROUPE_SOURCE_DIR "/tests/fixtures");
}

std::vector<fs::path> files_with_suffix(const fs::path& folder, const std::string& suffix) {
  std::vector<fs::path> found;
  if (!fs::is_directory(folder)) return found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename().string().ends_with(suffix)) found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

void report(const fs::path& file, size_t index, const std::string& name, const std::string& problem) {
  std::printf("%s#%zu %s %s max=%d\n", file.filename().c_str(), index, name.c_str(), problem.empty() ? "ok" : "FAIL",
              problem.empty() ? 0 : 1);
  INFO(file.string(), "#", index, " ", name, ": ", problem);
  CHECK(problem.empty());
}

std::string check_tokenizer_case(const Tokenizer& tokenizer, const nlohmann::json& item) {
  const auto text = item.at("text").get<std::string>();
  const auto ids = item.at("ids").get<std::vector<int32_t>>();
  if (tokenizer.encode(text, false) != ids) return "other ids for " + item.at("text").dump();
  if (item.contains("decoded") && tokenizer.decode(ids, false) != item.at("decoded").get<std::string>()) {
    return "decoded otherwise: " + tokenizer.decode(ids, false);
  }
  std::string streamed;
  IncrementalDecoder decoder(tokenizer, false);
  for (const int32_t id : ids) streamed += decoder.push(id);
  streamed += decoder.finish();
  return streamed == tokenizer.decode(ids, false) ? "" : "streamed otherwise: " + streamed;
}

std::string check_template_case(const std::map<std::string, ChatTemplate>& templates, const OrderedJson& document,
                                const OrderedJson& item) {
  OrderedJson variables = {{"messages", document.at("conversations").at(item.at("conversation").get<std::string>())},
                           {"tools", nullptr},
                           {"documents", nullptr},
                           {"add_generation_prompt", item.at("add_generation_prompt")},
                           {"bos_token", "<s>"},
                           {"eos_token", "</s>"},
                           {"unk_token", "<unk>"},
                           {"pad_token", "<pad>"}};
  if (item.contains("tools")) variables["tools"] = item.at("tools");
  std::string text;
  try {
    text = templates.at(item.at("template").get<std::string>()).render(variables);
  } catch (const Error& error) {
    return item.contains("error") ? "" : error.what();
  }
  if (item.contains("error")) return "no error";
  return text == item.at("text").get<std::string>()
             ? ""
             : "got " + OrderedJson(text).dump() + " instead of " + item.at("text").dump();
}

}  // namespace

TEST_SUITE("fixtures") {
  TEST_CASE("fixture tokenizer") {
    size_t count = 0;
    for (const auto& file : files_with_suffix(fixtures_folder() / "tokenizer", ".cases.json")) {
      const auto name = file.filename().string();
      const auto stem = name.substr(0, name.size() - std::string(".cases.json").size());
      const auto tokenizer = parse_tokenizer(read_file(file.parent_path() / (stem + ".tokenizer.json")));
      const auto document = nlohmann::json::parse(read_file(file));
      for (const auto& item : document.at("cases")) {
        report(file, count, stem, check_tokenizer_case(*tokenizer, item));
        ++count;
      }
    }
    CHECK(count > 0);
  }

  TEST_CASE("fixture chat template") {
    size_t count = 0;
    for (const auto& file : files_with_suffix(fixtures_folder() / "chat_template", ".json")) {
      const auto document = OrderedJson::parse(read_file(file));
      std::map<std::string, ChatTemplate> templates;
      for (const auto& [name, source] : document.at("templates").items()) {
        templates.emplace(name, ChatTemplate(source.get<std::string>()));
      }
      for (const auto& item : document.at("cases")) {
        report(file, count, item.at("template").get<std::string>() + "/" + item.at("conversation").get<std::string>(),
               check_template_case(templates, document, item));
        ++count;
      }
    }
    CHECK(count > 0);
  }
}
