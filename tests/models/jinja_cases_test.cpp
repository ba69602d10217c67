// What the reference Jinja, with transformers' settings, makes of small templates that use every construct once or
// more.
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "models/text/chat_template.h"
#include "tests/doctest.h"

using namespace troupe;

TEST_CASE("small templates render as the reference renders them, or fail as it fails") {
  const auto file =
      OrderedJson::parse(read_file(std::string(TROUPE_SOURCE_DIR) + "/tests/models/data/jinja_cases.json"));
  size_t num_texts = 0;
  for (const auto& item : file.at("cases")) {
    const auto source = item.at("template").get<std::string>();
    const auto render = [&] { return ChatTemplate(source).render(file.at("variables")); };
    if (item.contains("error")) {
      CHECK_THROWS_AS_MESSAGE(render(), Error, source);
      continue;
    }
    ++num_texts;
    std::string text;
    CHECK_NOTHROW_MESSAGE(text = render(), source);
    CHECK_MESSAGE(text == item.at("text").get<std::string>(), source);
  }
  CHECK(num_texts > 100);
}
