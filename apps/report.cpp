#include "apps/report.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "apps/report_page.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"

namespace troupe::apps {
namespace {

using nlohmann::json;

json read_lines(const std::filesystem::path& path, int64_t& num_unreadable) {
  auto records = json::array();
  if (!std::filesystem::exists(path)) return records;
  std::istringstream lines(read_file(path));
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) continue;
    auto record = json::parse(line, nullptr, false);
    if (record.is_object()) {
      records.push_back(std::move(record));
    } else {
      ++num_unreadable;
    }
  }
  return records;
}

/// JSON inside a <script> element: "</" must not end it, whatever a completion says.
std::string script_safe(const json& value) {
  auto text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  std::string safe;
  safe.reserve(text.size());
  for (const char c : text) {
    if (c == '<') {
      safe += "\\u003c";
    } else {
      safe += c;
    }
  }
  return safe;
}

/// First, middle and last steps' samples: enough to see how completions changed.
json choose_samples(const json& samples) {
  constexpr size_t kShown = 16;
  if (samples.size() <= 3 * kShown) return samples;
  auto chosen = json::array();
  for (const size_t begin : {size_t{0}, samples.size() / 2 - kShown / 2, samples.size() - kShown}) {
    for (size_t i = begin; i < begin + kShown; ++i) chosen.push_back(samples[i]);
  }
  return chosen;
}

json read_run(const std::filesystem::path& run_folder) {
  int64_t num_unreadable = 0;
  const auto metrics = read_lines(run_folder / "metrics.jsonl", num_unreadable);
  if (metrics.empty())
    fail("no metrics in ", (run_folder / "metrics.jsonl").string(), ": not the folder of a run, or no step was done");
  const auto samples = choose_samples(read_lines(run_folder / "rollout_samples.jsonl", num_unreadable));
  if (num_unreadable > 0)
    log::warning("report: ", num_unreadable, " lines of ", run_folder.string(), " could not be read and are left out");
  const auto config_path = run_folder / "config.toml";
  return {{"name", run_folder.filename().string()},
          {"metrics", metrics},
          {"samples", samples},
          {"config", std::filesystem::exists(config_path) ? read_file(config_path) : ""}};
}

/// Of the metrics that tell how a run went, the first and the last value.
std::vector<RunChange> changes_of(const json& records) {
  std::map<std::string, std::vector<double>> values;
  for (const auto& record : records)
    for (const auto& [name, value] : record.items())
      if (value.is_number()) values[name].push_back(value);
  std::vector<RunChange> changes;
  for (const auto& [name, series] : values) {
    const bool is_mean = name == "kl/mean" || (name.starts_with("reward/") && name.ends_with("mean"));
    const bool is_score = name == "validation/loss" || name == "validation/accuracy" || name == "evaluation/score" ||
                          name.starts_with("evaluation/reward/");
    if (!is_mean && !is_score) continue;
    const auto count = is_mean ? std::min<size_t>(10, series.size()) : 1;
    RunChange change{name};
    for (size_t i = 0; i < count; ++i) {
      change.first += series[i] / static_cast<double>(count);
      change.last += series[series.size() - 1 - i] / static_cast<double>(count);
    }
    changes.push_back(change);
  }
  return changes;
}

/// `expression`: JavaScript whose value is a run's data.
void write_page(const std::filesystem::path& path, const std::string& expression) {
  std::string page = kReportPage;
  const std::string mark = "/*DATA*/";
  page.replace(page.find(mark), mark.size(), expression);
  write_file_atomically(path, page);
}

/// Shows the changes of all runs and a button for each; answers the run that was chosen.
constexpr const char* kPipelineScript = R"js((all => {
  const make = (tag, content) => { const e = document.createElement(tag); e.textContent = content; return e; };
  const chosen = Math.max(0, all.runs.findIndex(r => "#" + r.name === decodeURIComponent(location.hash)));
  const heading = document.getElementById("name"), table = document.createElement("table"), buttons = document.createElement("p");
  const head = document.createElement("tr");
  for (const h of ["stage", "metric", "at first", "at last"]) head.append(make("th", h));
  table.append(head);
  all.runs.forEach((run, i) => {
    const button = make("button", run.name);
    button.disabled = i === chosen;
    button.onclick = () => { location.hash = run.name; location.reload(); };
    buttons.append(button, " ");
    for (const c of run.changes) {
      const row = document.createElement("tr");
      for (const v of [run.name, c[0], String(+c[1].toPrecision(4)), String(+c[2].toPrecision(4))]) row.append(make("td", v));
      table.append(row);
    }
  });
  heading.before(make("h1", all.name), table, buttons);
  return all.runs[chosen];
}))js";

}  // namespace

void write_report(const std::filesystem::path& run_folder) {
  write_page(run_folder / "report.html", script_safe(read_run(run_folder)));
}

std::vector<RunChange> summarize_run(const std::filesystem::path& folder) {
  int64_t num_unreadable = 0;
  return changes_of(read_lines(folder / "metrics.jsonl", num_unreadable));
}

void write_pipeline_report(const std::filesystem::path& folder, const std::string& name,
                           const std::vector<std::filesystem::path>& runs) {
  json all{{"name", name}, {"runs", json::array()}};
  for (const auto& run : runs) {
    auto data = read_run(run);
    data["changes"] = json::array();
    for (const auto& change : changes_of(data["metrics"]))
      data["changes"].push_back({change.metric, change.first, change.last});
    all["runs"].push_back(std::move(data));
  }
  write_page(folder / "report.html", concat(kPipelineScript, "(", script_safe(all), ")"));
}

}  // namespace troupe::apps
