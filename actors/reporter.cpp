#include "actors/reporter.h"

#include <unistd.h>

#include <climits>
#include <deque>
#include <fstream>
#include <nlohmann/json.hpp>

#include "actors/question.h"
#include "base/error.h"
#include "base/file.h"

namespace troupe {
namespace {

using Clock = std::chrono::steady_clock;

double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// Whole or not at all, but not synced: a power cut may take it.
void replace_file(const std::filesystem::path& path, const nlohmann::json& status) {
  auto beside = path;
  beside += ".new";
  {
    std::ofstream out(beside, std::ios::trunc);
    out << status.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
    out.flush();
    require(out.good(), beside.string(), ": cannot be written");
  }
  std::filesystem::rename(beside, path);
}

/// What every status begins with.
nlohmann::json sign_of_life() {
  char host[HOST_NAME_MAX + 1] = {};
  ::gethostname(host, HOST_NAME_MAX);
  return {{"format", 1}, {"state", "running"}, {"time", unix_time()}, {"host", host}, {"process", ::getpid()}};
}

class ReporterState {
 public:
  using Pointer = reporter_actor::stateful_pointer<ReporterState>;
  static constexpr const char* name = "reporter";

  explicit ReporterState(Pointer self) : self_(self) {}

  reporter_actor::behavior_type start(run_control_actor control, ReporterSetup setup) {
    control_ = std::move(control);
    setup_ = std::move(setup);
    self_->send(self_, atom::next_v);
    return {
        [this](atom::arrive, const caf::strong_actor_ptr& pool) { pool_ = caf::actor_cast<reward_pool_actor>(pool); },
        [this](atom::next) { look(); },
    };
  }

 private:
  struct Moment {
    Clock::time_point time;
    std::map<std::string, double> busy_s;                    // by role
    std::map<int, std::pair<int64_t, double>> rollout_work;  // decoded tokens, busy seconds; by seat
  };

  void look() {
    self_->request(control_, setup_.limit, atom::status_v)
        .then([this](const std::string& answer) { look_at_pool(answer); },
              [this](const caf::error& error) {
                const auto why = describe_error(error, self_->system());
                look_at_pool(nlohmann::json{{"text", "the run control does not answer: " + why}}.dump(
                    -1, ' ', false, nlohmann::json::error_handler_t::replace));
              });
  }

  void look_at_pool(const std::string& control) {
    if (!pool_) {
      tell(control, "");
      return;
    }
    self_->request(pool_, setup_.limit, atom::status_v)
        .then([this, control](const std::string& answer) { tell(control, answer); },
              [this, control](const caf::error&) { tell(control, ""); });
  }

  /// `pool` "": there is none, or it does not answer.
  void tell(const std::string& control, const std::string& pool) {
    self_->delayed_send(self_, setup_.interval, atom::next_v);  // whatever becomes of this one
    try {
      replace_file(setup_.path, describe(nlohmann::json::parse(control), pool));
    } catch (const std::exception& error) {
      if (!std::exchange(has_failed_, true)) log::warning("reporter: ", error.what());
    }
  }

  nlohmann::json describe(nlohmann::json control, const std::string& pool) {
    const auto now = Clock::now();
    Moment moment{now, setup_.trace->busy_s(), {}};
    const auto doing = setup_.trace->doing();
    for (const auto& [role, what] : doing) moment.busy_s[role] += what.for_s;
    for (const auto& worker : control.value("workers", nlohmann::json::array()))
      moment.rollout_work[worker.at("seat")] = {worker.at("decoded_tokens"), worker.at("busy_s")};
    auto status = sign_of_life();
    if (!history_.empty()) add_rates(history_.front(), moment, control, status);
    history_.push_back(std::move(moment));
    while (history_.size() > 2 && now - history_.front().time > setup_.window) history_.pop_front();
    for (const auto& [role, what] : doing) status["doing"][role] = {{"what", what.name}, {"for_s", what.for_s}};
    status["control"] = std::move(control);
    if (!pool.empty()) status["reward_pool"] = nlohmann::json::parse(pool);
    auto& questions = status["questions"] = nlohmann::json::array();
    const auto wall = std::chrono::system_clock::now();
    for (const auto& question : open_questions())
      questions.push_back({{"who", question.who},
                           {"whom", question.whom},
                           {"what", question.what},
                           {"for_s", std::chrono::duration<double>(wall - question.asked_at).count()}});
    return status;
  }

  /// Since the oldest moment that is remembered.
  static void add_rates(const Moment& then, const Moment& now, nlohmann::json& control, nlohmann::json& status) {
    const auto seconds = std::chrono::duration<double>(now.time - then.time).count();
    if (seconds <= 0) return;
    for (const auto& [role, busy_s] : now.busy_s) {
      const auto before = then.busy_s.find(role);
      const auto share = (busy_s - (before == then.busy_s.end() ? 0 : before->second)) / seconds;
      status["idle"][role] = std::clamp(1 - share, 0.0, 1.0);
    }
    double all = 0;
    if (now.rollout_work.empty()) return;
    for (auto& worker : control["workers"]) {
      const auto before = then.rollout_work.find(worker.at("seat").get<int>());
      if (before == then.rollout_work.end()) continue;
      const auto& [tokens, busy_s] = now.rollout_work.at(worker.at("seat"));
      const auto rate = std::max(0.0, static_cast<double>(tokens - before->second.first) / seconds);
      worker["tokens_per_second"] = rate;
      worker["idle"] = std::clamp(1 - (busy_s - before->second.second) / seconds, 0.0, 1.0);
      all += rate;
    }
    status["tokens_per_second"] = all;
  }

  Pointer self_;
  run_control_actor control_;
  reward_pool_actor pool_;
  ReporterSetup setup_;
  std::deque<Moment> history_;
  bool has_failed_ = false;
};

}  // namespace

reporter_actor spawn_reporter(caf::actor_system& system, run_control_actor control, ReporterSetup setup) {
  return spawn_state<reporter_actor, ReporterState>(system, std::move(control), std::move(setup));
}

void open_status(const std::filesystem::path& path) { replace_file(path, sign_of_life()); }

void close_status(const std::filesystem::path& path, const std::string& how) {
  try {
    auto status =
        std::filesystem::exists(path) ? nlohmann::json::parse(read_file(path), nullptr, false) : nlohmann::json();
    if (!status.is_object()) status = {{"format", 1}};
    status["state"] = how;
    status["time"] = unix_time();
    status["questions"] = nlohmann::json::array();
    status.erase("doing");
    replace_file(path, status);
  } catch (const std::exception& error) {
    log::warning("status.json: ", error.what());
  }
}

}  // namespace troupe
