#include "actors/question.h"

#include <atomic>
#include <ctime>

namespace troupe {
namespace {

std::atomic<int64_t> failed_questions{0};

/// "08:51:03", in the time zone of the log.
std::string time_of_day(std::chrono::system_clock::time_point time) {
  const auto seconds = std::chrono::system_clock::to_time_t(time);
  std::tm parts{};
  localtime_r(&seconds, &parts);
  char text[16];
  std::strftime(text, sizeof text, "%H:%M:%S", &parts);
  return text;
}

}  // namespace

int64_t num_failed_questions() { return failed_questions; }

std::string Question::describe(const caf::local_actor& self, const std::string& outcome) const {
  const auto waited = std::chrono::duration<double>(self.clock().now() - asked_).count();
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.1f", waited);
  return concat(who_, ": waited ", seconds, " s, since ", time_of_day(asked_at_), ", for ", whom_, " (", what_,
                "): ", outcome);
}

std::string Question::failed(const caf::local_actor& self, const caf::error& error) const {
  ++failed_questions;
  const auto text = describe(self, describe_error(error, self.home_system()));
  log::warning(text);
  return text;
}

bool is_timeout(const caf::error& error) { return error == caf::sec::request_timeout; }

bool is_receiver_gone(const caf::error& error) { return error == caf::sec::request_receiver_down; }

}  // namespace troupe
