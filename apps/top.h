// What `troupe top` shows of a run that goes on.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace troupe::apps {

/// A page of plain text: `status` as in status.json (actors/reporter.h), `step` the newest step of metrics.jsonl (null:
/// none yet), `now_s` the time of day in Unix seconds, `is_gone`: the process that wrote it lives no more.
std::string top_page(const nlohmann::json& status, const nlohmann::json& step, double now_s, bool is_gone);

}  // namespace troupe::apps
