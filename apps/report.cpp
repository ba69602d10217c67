#include "apps/report.h"

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

}  // namespace

void write_report(const std::filesystem::path& run_folder) {
  int64_t num_unreadable = 0;
  const auto metrics = read_lines(run_folder / "metrics.jsonl", num_unreadable);
  if (metrics.empty())
    fail("no metrics in ", (run_folder / "metrics.jsonl").string(), ": not the folder of a run, or no step was done");
  const auto samples = choose_samples(read_lines(run_folder / "rollout_samples.jsonl", num_unreadable));
  if (num_unreadable > 0)
    log::warning("report: ", num_unreadable, " lines of ", run_folder.string(), " could not be read and are left out");
  const auto config_path = run_folder / "config.toml";
  json data{{"name", run_folder.filename().string()},
            {"metrics", metrics},
            {"samples", samples},
            {"config", std::filesystem::exists(config_path) ? read_file(config_path) : ""}};
  std::string page = kReportPage;
  const std::string mark = "/*DATA*/";
  page.replace(page.find(mark), mark.size(), script_safe(data));
  write_file_atomically(run_folder / "report.html", page);
}

}  // namespace troupe::apps
