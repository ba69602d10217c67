// What the reference Jinja, with transformers' settings, makes of small templates that use every construct once or
// more.
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "models/text/chat_template.h"
#include "tests/doctest.h"

using namespace troupe;

namespace {

/// Renders every case of a file; returns how many gave a text.
size_t check_cases(const std::string& path) {
  const auto file = OrderedJson::parse(read_file(path));
  size_t num_texts = 0;
  for (const auto& item : file.at("cases")) {
    const auto source = item.at("template").get<std::string>();
    const auto name = item.value("name", source);
    const auto& variables = item.contains("variables") ? item.at("variables") : file.at("variables");
    const auto render = [&] { return ChatTemplate(source).render(variables); };
    if (item.contains("error")) {
      CHECK_THROWS_AS_MESSAGE(render(), Error, name << "\n  " << item.at("error"));
      continue;
    }
    ++num_texts;
    std::string text;
    CHECK_NOTHROW_MESSAGE(text = render(), name);
    CHECK_MESSAGE(text == item.at("text").get<std::string>(), name);
  }
  return num_texts;
}

}  // namespace

TEST_CASE("small templates render as the reference renders them, or fail as it fails") {
  CHECK(check_cases(std::string(TROUPE_SOURCE_DIR) + "/tests/models/data/jinja_cases.json") > 100);
}

TEST_CASE("templates of TROUPE_JINJA_CASES" * doctest::skip()) {  // for tests/soak/jinja_differential.py
  const char* path = std::getenv("TROUPE_JINJA_CASES");
  REQUIRE(path != nullptr);
  check_cases(path);
}
