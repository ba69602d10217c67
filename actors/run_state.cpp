#include "actors/director.h"
#include "base/error.h"

namespace troupe {

nlohmann::json to_json(const RunState& state) {
  auto live = nlohmann::json::array();
  for (const auto& one : state.live)
    live.push_back({{"group", one.group}, {"index", one.index}, {"version", one.version}});
  nlohmann::json json{{"format", 1},
                      {"step", state.step},
                      {"version", state.step},
                      {"next_prompt", state.next_prompt},
                      {"next_index", state.next_index},
                      {"outstanding", std::move(live)},
                      {"dropped", state.dropped},
                      {"pending_drops", state.pending_drops},
                      {"num_given_up", state.num_given_up},
                      {"time_s", state.time_s},
                      {"evaluated_step", state.evaluated_step},
                      {"num_resumes", state.num_resumes}};
  if (state.has_best_score) json["best_score"] = state.best_score;
  return json;
}

RunState parse_run_state(const nlohmann::json& json) {
  try {
    require(json.at("format") == 1, "state.json: format ", json.at("format").dump(), " is not 1");
    RunState state;
    state.step = json.at("step");
    state.next_prompt = json.at("next_prompt");
    state.next_index = json.at("next_index");
    for (const auto& one : json.at("outstanding"))
      state.live.push_back({one.at("group"), one.at("index"), one.at("version")});
    state.dropped = json.at("dropped").get<std::map<std::string, int64_t>>();
    state.pending_drops = json.at("pending_drops");
    state.num_given_up = json.at("num_given_up");
    state.time_s = json.value("time_s", 0.0);
    state.evaluated_step = json.value("evaluated_step", state.step);
    state.num_resumes = json.value("num_resumes", int64_t{0});
    state.has_best_score = json.contains("best_score");
    if (state.has_best_score) state.best_score = json.at("best_score");
    return state;
  } catch (const nlohmann::json::exception& error) {
    fail("state.json: ", error.what());
  }
}

}  // namespace troupe
