#include "actors/trace.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/file.h"

namespace troupe {

void Trace::begin(const std::string& role, const std::string& name, Clock::time_point begin) {
  const std::lock_guard lock(mutex_);
  doing_[role] = {name, begin};
}

void Trace::add(const std::string& role, const std::string& name, Clock::time_point begin, Clock::time_point end) {
  const auto us = [](auto duration) { return std::chrono::duration_cast<std::chrono::microseconds>(duration).count(); };
  const std::lock_guard lock(mutex_);
  busy_s_[role] += std::chrono::duration<double>(end - begin).count();
  doing_.erase(role);
  if (!keep_events_) return;
  if (events_.size() >= kMostEvents) {
    ++num_left_out_;
    return;
  }
  auto at = std::find(roles_.begin(), roles_.end(), role);
  if (at == roles_.end()) at = roles_.insert(roles_.end(), role);
  events_.push_back({static_cast<int>(at - roles_.begin()), name, us(begin - start_), us(end - begin)});
}

std::map<std::string, double> Trace::busy_s() const {
  const std::lock_guard lock(mutex_);
  return busy_s_;
}

std::map<std::string, Trace::Doing> Trace::doing() const {
  const auto now = Clock::now();
  const std::lock_guard lock(mutex_);
  std::map<std::string, Doing> all;
  for (const auto& [role, entry] : doing_)
    all[role] = {entry.first, std::chrono::duration<double>(now - entry.second).count()};
  return all;
}

void Trace::write(const std::filesystem::path& path) const {
  const std::lock_guard lock(mutex_);
  auto events = nlohmann::json::array();
  for (size_t role = 0; role < roles_.size(); ++role)
    events.push_back(
        {{"ph", "M"}, {"pid", 1}, {"tid", role}, {"name", "thread_name"}, {"args", {{"name", roles_[role]}}}});
  for (const auto& event : events_)
    events.push_back({{"ph", "X"},
                      {"pid", 1},
                      {"tid", event.role},
                      {"name", event.name},
                      {"ts", event.begin_us},
                      {"dur", event.duration_us}});
  write_file_atomically(path,
                        nlohmann::json{{"traceEvents", std::move(events)}, {"spans_left_out", num_left_out_}}.dump());
}

}  // namespace troupe
