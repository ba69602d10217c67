// Pages that are made from code stay equal to it, and what a run shows is what it says.
#include <filesystem>
#include <fstream>

#include "apps/commands.h"
#include "apps/console.h"
#include "apps/report.h"
#include "base/error.h"
#include "base/file.h"
#include "tests/doctest.h"

using namespace troupe;

TEST_CASE("docs/configuration.md is the output of troupe keys") {
  CHECK_MESSAGE(read_file(TROUPE_SOURCE_DIR "/docs/configuration.md") == apps::configuration_page(),
                "run: build/bin/troupe keys > docs/configuration.md");
}

TEST_CASE("a step's console line names what is there and leaves out what is not") {
  const nlohmann::json metrics{{"step", 3}, {"loss/mean", -0.012345}, {"reward/mean", 0.5}, {"grad_norm", nullptr}};
  CHECK(apps::step_line(metrics, 10) == "step 3/10  loss -0.01235  reward  0.500");
  CHECK(apps::duration_text(65.4) == "1:05");
  CHECK(apps::duration_text(3600 + 62) == "1:01:02");
  CHECK(apps::duration_text(-1) == "0:00");
}

TEST_CASE("the report holds the run's data, survives a torn line, and cannot be broken by a completion") {
  const auto folder = std::filesystem::temp_directory_path() / "troupe_report_test";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  CHECK_THROWS_AS(apps::write_report(folder), Error);
  std::ofstream(folder / "metrics.jsonl")
      << "{\"step\":1,\"reward/mean\":0.25}\n{\"step\":2,\"reward/mean\":0.75}\n{\"step\":3,\"rew";
  std::ofstream(folder / "rollout_samples.jsonl")
      << nlohmann::json{{"step", 1}, {"completion", "</script><script>alert(1)</script>"}, {"reward", 0}}.dump()
      << "\n";
  apps::write_report(folder);
  const auto page = read_file(folder / "report.html");
  CHECK(page.find("\"reward/mean\":0.75") != std::string::npos);
  CHECK(page.find("</script><script>alert") == std::string::npos);
  CHECK(page.find("\\u003c/script>") != std::string::npos);
  CHECK(page.find("http://") ==
        page.find("http://www.w3.org/2000/svg"));  // the SVG name space is the only address in it
  CHECK(page.find("https://") == std::string::npos);
  std::filesystem::remove_all(folder);
}
