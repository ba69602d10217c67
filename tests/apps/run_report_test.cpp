// The report of a run that really happened: every curve and completion is in the page, and nothing of it needs a
// network.
#include "apps/report.h"
#include "tests/actors/tiny_run.h"

namespace troupe {

using namespace actor_tests;

TEST_CASE("report.html of a finished run holds all curves and completions, and refers to no network") {
  TinyRun run("report");
  run.topology.run.steps = 3;
  run.topology.evaluation.enable = true;
  run.topology.evaluation.data = run.topology.data;
  run.topology.evaluation.data.paths = {(run.folder.path / "held_out.jsonl").string()};
  run.topology.checkpoint.enable = false;
  REQUIRE(run.play() == 0);
  apps::write_report(run.run_folder());
  auto page = read_file(run.run_folder() / "report.html");

  const std::string name_space = "http://www.w3.org/2000/svg";  // an identifier, never fetched
  for (auto at = page.find(name_space); at != std::string::npos; at = page.find(name_space))
    page.erase(at, name_space.size());
  for (const char* reference : {"http:", "https:", "//cdn", "src=", "href=", "@import", "url(", "fetch(", "import(",
                                "XMLHttpRequest", "WebSocket", "EventSource", "sendBeacon", "<link", "<iframe", "<img"})
    CHECK_MESSAGE(page.find(reference) == std::string::npos, reference, " stands in the page");

  const auto begin = page.find("const data = ") + 13, end = page.find(";\n", begin);
  const auto data = nlohmann::json::parse(page.substr(begin, end - begin));
  for (const char* curve : {"reward/mean", "reward/exact/mean", "loss/mean", "entropy/mean", "logprob_diff/mean",
                            "logprob_diff/max", "train_batch/policy_age_max", "throughput(tps)", "idle/trainer",
                            "idle/rollout", "idle/reward", "grad_norm", "lr"}) {
    int count = 0;
    for (const auto& line : data.at("metrics")) count += line.contains(curve) && line.at(curve).is_number();
    // Where all groups are constant nothing is trained, and there is no entropy to show.
    CHECK_MESSAGE(count >= (std::string(curve).find("entropy") == 0 || std::string(curve).find("logprob") == 0 ? 1 : 3),
                  curve, " has ", count, " points");
  }
  int num_scores = 0;
  for (const auto& line : data.at("metrics")) num_scores += line.contains("evaluation/score");
  CHECK(num_scores == 2);  // before and after
  std::set<int64_t> shown;
  for (const auto& sample : data.at("samples")) {
    shown.insert(sample.at("step").get<int64_t>());
    CHECK(sample.at("prompt").get<std::string>().size() == 3);
    CHECK(sample.at("finish_reason").is_string());  // the key that the page's table reads
    CHECK(sample.contains("completion"));
    CHECK(sample.at("reward").is_number());
  }
  CHECK(shown.contains(1));
  CHECK(shown.contains(3));
  for (const char* read : {"s.finish_reason", "s.completion", "s.prompt", "s.reward"})
    CHECK(page.find(read) != std::string::npos);
}

}  // namespace troupe
