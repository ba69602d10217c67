// `troupe top --run FOLDER`: how a run stands, live: roles, versions, slots, queues, idle shares, tokens a second, and
// who waits for whom since when. It reads status.json and metrics.jsonl of the run folder and disturbs nobody.
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <climits>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <thread>

#include "apps/commands.h"
#include "apps/console.h"
#include "apps/top.h"
#include "base/error.h"
#include "base/file.h"

namespace troupe::apps {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr double kSilentAfter_s = 5;  // it writes every second
constexpr size_t kMostQuestions = 12;

std::string number(double value, const char* format) {
  char text[48];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string padded(std::string text, size_t width) {
  text.resize(std::max(width, text.size()), ' ');
  return text + " ";
}

std::string idle_text(const Json& share) {
  return share.is_number() ? number(100 * share.get<double>(), "%3.0f %%") : "    -";
}

/// A metric of the step, where it is there: "reward 0.53".
void add_metric(std::string& line, const Json& step, const char* key, const char* label, const char* format) {
  if (step.is_object() && step.contains(key) && step[key].is_number())
    line += concat(line.empty() ? "" : "   ", label, " ", number(step[key], format));
}

/// The last whole line of a file that grows.
Json last_step(const fs::path& path) {
  constexpr std::streamoff kMostBytes = 256 << 10;
  std::ifstream file(path, std::ios::ate | std::ios::binary);
  if (!file) return {};
  const std::streamoff size = file.tellg();
  const auto begin = std::max<std::streamoff>(0, size - kMostBytes);
  file.seekg(begin);
  Json step;
  std::string line;
  if (begin > 0) std::getline(file, line);  // its beginning is missing
  while (std::getline(file, line)) {
    auto record = Json::parse(line, nullptr, false);
    if (record.is_object() && record.contains("loss/mean")) step = std::move(record);
  }
  return step;
}

bool is_process_gone(const Json& status) {
  char host[HOST_NAME_MAX + 1] = {};
  ::gethostname(host, HOST_NAME_MAX);
  if (status.value("host", "") != host) return false;
  return ::kill(status.value("process", 0), 0) != 0 && errno == ESRCH;
}

double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

int show(const fs::path& folder, bool once, double interval_s) {
  if (!fs::is_directory(folder)) fail(folder.string(), ": no such folder");
  const bool is_terminal = ::isatty(STDOUT_FILENO) != 0 && !once;
  while (true) {
    const auto path = folder / "status.json";
    if (!fs::exists(path)) fail(path.string(), " is not there: no run has begun in this folder");
    const auto status = Json::parse(read_file(path), nullptr, false);
    require(status.is_object(), path.string(), ": not the status of a run");
    const bool is_over = status.value("state", "") != "running";
    auto page = top_page(status, last_step(folder / "metrics.jsonl"), unix_time(), !is_over && is_process_gone(status));
    if (is_terminal) {  // in place; what was longer before is wiped line by line
      std::string drawn = "\033[H";
      for (const char c : page) drawn += c == '\n' ? std::string("\033[K\n") : std::string(1, c);
      page = drawn + "\033[J";
    }
    std::cout << page << (is_terminal || once ? "" : "\n") << std::flush;
    if (once || is_over) return 0;
    std::this_thread::sleep_for(std::chrono::duration<double>(interval_s));
  }
}

}  // namespace

std::string top_page(const Json& status, const Json& step, double now_s, bool is_gone) {
  const auto control = status.value("control", Json::object());
  std::string page = concat("step ", control.value("step", int64_t{0}), " of ", control.value("steps", int64_t{0}));
  if (control.contains("version")) page += concat("   policy version ", control["version"].get<int64_t>());
  if (step.is_object()) page += concat("   trained for ", duration_text(step.value("time_s", 0.0)));
  const auto state = status.value("state", "");
  const auto age_s = now_s - status.value("time", now_s);
  if (state != "running")
    page += "   " + state;
  else if (is_gone)
    page +=
        concat("   process ", status.value("process", 0), " is gone, it was ended ", number(age_s, "%.0f"), " s ago");
  else if (age_s > kSilentAfter_s)
    page += concat("   no sign of life for ", number(age_s, "%.0f"), " s");
  page += "\n";

  std::string line;
  add_metric(line, step, "reward/mean", "reward", "%.3f");
  add_metric(line, step, "loss/mean", "loss", "%.4f");
  add_metric(line, step, "train_batch/policy_age_max", "age", "%.0f");
  add_metric(line, step, "throughput(tps)", "trained tokens/s", "%.0f");
  if (status.contains("tokens_per_second"))
    line += concat(line.empty() ? "" : "   ", "made tokens/s ", number(status["tokens_per_second"], "%.0f"));
  add_metric(line, step, "memory/resident(GiB)", "memory GiB", "%.2f");
  if (!line.empty()) page += line + "\n";
  if (control.contains("slots")) {
    page += concat("slots ", control["slots"].value("taken", 0), " of ", control["slots"].value("all", 0),
                   " taken   samples under way ", control.value("samples_outstanding", 0), ", waiting for a worker ",
                   control.value("samples_waiting", 0), ", issued again ", control.value("num_reissued", 0),
                   ", given up ", control.value("num_given_up", 0), "\n");
  }
  if (control.contains("buffer"))
    page += concat("groups complete ", control["buffer"].value("complete", 0), ", in flight ",
                   control["buffer"].value("in_flight", 0), "\n");
  if (status.contains("reward_pool")) {
    const auto& pool = status["reward_pool"];
    page += concat("graders ", pool.value("graders", 0), "   samples asked about ", pool.value("asked", 0),
                   ", waiting for a grader ", pool.value("waiting", 0), "\n");
  }
  if (!control.contains("step") && control.contains("text")) page += control["text"].get<std::string>() + "\n";

  page += concat("\n", padded("role", 12), " idle  at\n");
  const auto idle = status.value("idle", Json::object()), doing = status.value("doing", Json::object());
  const auto at = [&](const std::string& role) {
    return doing.contains(role)
               ? concat(doing[role].value("what", ""), " for ", number(doing[role].value("for_s", 0.0), "%.1f"), " s")
               : std::string("-");
  };
  for (const auto& [role, share] : idle.items())
    if (!role.starts_with("rollout ")) page += concat(padded(role, 12), idle_text(share), "  ", at(role), "\n");
  for (const auto& worker : control.value("workers", Json::array())) {
    const auto role = concat("rollout ", worker.value("seat", 0));
    page += concat(padded(role, 12), idle_text(worker.value("idle", Json())), "  version ",
                   worker.value("version", int64_t{-1}), ", ", worker.value("num_samples", 0), " samples, ",
                   number(worker.value("tokens_per_second", 0.0), "%.0f"), " tokens/s, heard of ",
                   number(worker.value("heard_s_ago", 0.0), "%.1f"), " s ago\n");
  }
  const auto questions = status.value("questions", Json::array());
  if (questions.empty()) return page;
  page += "\nwho waits for whom\n";
  for (size_t i = 0; i < std::min(questions.size(), kMostQuestions); ++i)
    page += concat(number(questions[i].value("for_s", 0.0), "%7.1f"), " s  ", questions[i].value("who", ""), " for ",
                   questions[i].value("whom", ""), " (", questions[i].value("what", ""), ")\n");
  if (questions.size() > kMostQuestions)
    page += concat("           and ", questions.size() - kMostQuestions, " more\n");
  return page;
}

void add_top(CLI::App& app, Action& action) {
  struct Options {
    std::string run;
    bool once = false;
    double interval_s = 1;
  };
  auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand("top", "how a run stands, live: who is at what, and who waits for whom");
  command->add_option("--run", options->run, "run folder")->required();
  command->add_flag("--once", options->once, "one page, then end");
  command->add_option("--interval-s", options->interval_s, "seconds between two pages")->check(CLI::PositiveNumber);
  command->callback(
      [options, &action] { action = [options] { return show(options->run, options->once, options->interval_s); }; });
}

}  // namespace troupe::apps
