#include "apps/console.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <iostream>
#include <mutex>

#include "base/log.h"

namespace troupe::apps {
namespace {

// The bar is the last line of the terminal: a log line first wipes it, then it is drawn again. One console per process.
std::mutex bar_mutex;
std::string bar_text;

void draw_line_above_bar(std::string_view line) {
  std::scoped_lock lock(bar_mutex);
  std::fputs("\r\033[K", stderr);
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fputs(bar_text.c_str(), stderr);
  std::fflush(stderr);
}

void set_bar(std::string text) {
  std::scoped_lock lock(bar_mutex);
  bar_text = std::move(text);
  std::fprintf(stderr, "\r\033[K%s", bar_text.c_str());
  std::fflush(stderr);
}

int terminal_columns() {
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

struct Column {
  const char* key;
  const char* label;
  const char* format;
};

constexpr Column kColumns[] = {
    {"loss/mean", "loss", "%8.5f"},
    {"grad_norm", "grad_norm", "%7.4f"},
    {"reward/mean", "reward", "%6.3f"},
    {"entropy/mean", "entropy", "%6.3f"},
    {"preference/accuracy", "accuracy", "%6.3f"},
    {"kl/mean", "kl", "%7.4f"},
    {"logprob_diff/mean", "logprob_diff", "%.1e"},
    {"train_batch/policy_age_max", "age", "%.0f"},
    {"rollout/response_length", "length", "%5.1f"},
    {"validation/loss", "validation", "%7.4f"},
    {"evaluation/score", "held-out", "%6.3f"},
    {"throughput(tps)", "tps", "%6.0f"},
    {"mfu(%)", "mfu%", "%5.1f"},
};

}  // namespace

std::string duration_text(double seconds) {
  const auto total = static_cast<long long>(std::llround(std::max(0.0, seconds)));
  char text[48];
  if (total >= 3600) {
    std::snprintf(text, sizeof(text), "%lld:%02lld:%02lld", total / 3600, total / 60 % 60, total % 60);
  } else {
    std::snprintf(text, sizeof(text), "%lld:%02lld", total / 60, total % 60);
  }
  return text;
}

std::string step_line(const nlohmann::json& metrics, int64_t total_steps) {
  std::string line = concat("step ", metrics.value("step", int64_t{0}), "/", total_steps);
  for (const auto& column : kColumns) {
    const auto found = metrics.find(column.key);
    if (found == metrics.end() || !found->is_number()) continue;
    char value[64];
    std::snprintf(value, sizeof(value), column.format, found->get<double>());
    line += concat("  ", column.label, " ", value);
  }
  return line;
}

Console::Console(const std::string& mode, int64_t total_steps, int64_t log_frequency)
    : total_steps_(total_steps),
      log_frequency_(log_frequency),
      quiet_(mode == "quiet"),
      bar_(mode == "auto" && ::isatty(STDERR_FILENO) == 1),
      start_(std::chrono::steady_clock::now()) {
  if (bar_) log::set_console_sink(&draw_line_above_bar);
}

Console::~Console() {
  if (!bar_) return;
  set_bar("");
  log::set_console_sink(nullptr);
}

void Console::step(const nlohmann::json& metrics) {
  const auto step = metrics.value("step", int64_t{0});
  if (!quiet_ && (step % log_frequency_ == 0 || step == total_steps_ || step == 1))
    log::info(step_line(metrics, total_steps_));
  progress(step);
}

void Console::progress(int64_t done) {
  if (first_step_ < 0) first_step_ = done - 1;
  if (!bar_) return;
  const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  const auto steps = std::max<int64_t>(1, done - first_step_);
  const double left = elapsed / static_cast<double>(steps) * static_cast<double>(total_steps_ - done);
  const auto tail =
      concat(" ", done, "/", total_steps_, "  ", duration_text(elapsed), " gone, ", duration_text(left), " left");
  const int width = std::max(10, std::min(50, terminal_columns() - static_cast<int>(tail.size()) - 4));
  const auto filled = static_cast<int>(width * done / std::max<int64_t>(1, total_steps_));
  set_bar("[" + std::string(static_cast<size_t>(filled), '=') + std::string(static_cast<size_t>(width - filled), ' ') +
          "]" + tail);
}

}  // namespace troupe::apps
