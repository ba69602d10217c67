#include "actors/director_status.h"

#include "base/error.h"

namespace troupe {
namespace {

std::string dump(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

nlohmann::json describe(const DirectorView& view) {
  std::string text = concat(view.who, ": ", view.work.describe(), "; ", view.slots.num_live(), " of ",
                            view.slots.capacity(), " slots taken");
  auto workers = nlohmann::json::array();
  for (const auto& worker : view.workers) {
    text += concat("; rollout ", worker.seat, " was heard of ", static_cast<int64_t>(worker.heard_s_ago), " s ago");
    workers.push_back({{"seat", worker.seat},
                       {"version", view.work.version_of(worker.seat)},
                       {"num_samples", view.work.num_at(worker.seat)},
                       {"heard_s_ago", worker.heard_s_ago},
                       {"decoded_tokens", worker.status.decoded_tokens},
                       {"busy_s", worker.status.busy_s}});
  }
  if (view.workers.empty()) text += "; no rollout worker is here";
  return {{"text", std::move(text)},
          {"step", view.step},
          {"steps", view.num_steps},
          {"version", view.version},
          {"slots", {{"taken", view.slots.num_live()}, {"all", view.slots.capacity()}}},
          {"samples_outstanding", view.work.num_outstanding()},
          {"samples_waiting", view.work.num_waiting()},
          {"num_reissued", view.work.num_reissued()},
          {"num_given_up", view.num_given_up},
          {"workers", std::move(workers)}};
}

std::string add_buffer(nlohmann::json status, const std::string& buffer_json) {
  auto buffer = nlohmann::json::parse(buffer_json);
  status["text"] = concat(status["text"].get<std::string>(), "; buffer: ", buffer.at("text").get<std::string>());
  status["buffer"] = std::move(buffer);
  return dump(status);
}

std::string add_failure(nlohmann::json status, const std::string& why) {
  status["text"] = concat(status["text"].get<std::string>(), "; ", why);
  return dump(status);
}

}  // namespace troupe
