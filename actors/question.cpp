#include "actors/question.h"

#include <algorithm>
#include <atomic>
#include <ctime>
#include <list>
#include <mutex>

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

/// In the order in which they were asked.
struct OpenList {
  std::mutex mutex;
  std::list<OpenQuestion> questions;
};
OpenList& open_list() {
  static auto* const list = new OpenList();  // actors may outlive static objects
  return *list;
}

}  // namespace

/// Stands in the list while it lives.
class Question::Entry {
 public:
  explicit Entry(OpenQuestion question) {
    const std::lock_guard lock(open_list().mutex);
    at_ = open_list().questions.insert(open_list().questions.end(), std::move(question));
  }
  ~Entry() {
    const std::lock_guard lock(open_list().mutex);
    open_list().questions.erase(at_);
  }
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;
  const OpenQuestion& question() const { return *at_; }

 private:
  std::list<OpenQuestion>::iterator at_;
};

int64_t num_failed_questions() { return failed_questions; }

std::vector<OpenQuestion> open_questions() {
  const std::lock_guard lock(open_list().mutex);
  return {open_list().questions.begin(), open_list().questions.end()};
}

std::string who_waits() {
  constexpr size_t kMost = 10;
  const auto open = open_questions();
  std::string text;
  for (size_t i = 0; i < std::min(open.size(), kMost); ++i)
    text += concat(i == 0 ? "" : "; ", open[i].who, " waits for ", open[i].whom, " (", open[i].what, ") since ",
                   time_of_day(open[i].asked_at));
  if (open.size() > kMost) text += concat("; and ", open.size() - kMost, " more");
  return text.empty() ? "nobody waits for anybody" : text;
}

Question::Question(const caf::local_actor& self, std::string who, std::string whom, std::string what)
    : entry_(std::make_shared<const Entry>(
          OpenQuestion{std::move(who), std::move(whom), std::move(what), std::chrono::system_clock::now()})),
      asked_(self.clock().now()) {}

std::string Question::describe(const caf::local_actor& self, const std::string& outcome) const {
  const auto waited = std::chrono::duration<double>(self.clock().now() - asked_).count();
  const auto& question = entry_->question();
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.1f", waited);
  return concat(question.who, ": waited ", seconds, " s, since ", time_of_day(question.asked_at), ", for ",
                question.whom, " (", question.what, "): ", outcome);
}

std::string Question::failed(const caf::local_actor& self, const caf::error& error) const {
  ++failed_questions;
  const auto text = describe(self, describe_error(error, self.home_system()));
  log::warning(text);
  if (is_timeout(error)) log::warning("who waits: ", who_waits());
  return text;
}

bool is_timeout(const caf::error& error) { return error == caf::sec::request_timeout; }

bool is_receiver_gone(const caf::error& error) { return error == caf::sec::request_receiver_down; }

}  // namespace troupe
