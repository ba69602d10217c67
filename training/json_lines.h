// JSONL files: one object a line, with a byte-order mark, CRLF, blank lines and a missing last line feed taken as they
// come.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

struct JsonLine {
  int64_t number = 0;      // from 1
  std::string_view bytes;  // of the line, without its end
  nlohmann::json object;
};

/// Calls `take` for every line that holds an object; it returns why the record is of no use, or "". A bad line (not
/// JSON, not an object, refused by `take`) throws Error with `path` and line number, or, with `skip_bad_lines`, is left
/// out and appended to `skipped` as "path:line: reason" (B152).
void read_json_lines(const std::string& path, std::string_view text, bool skip_bad_lines,
                     const std::function<std::string(const JsonLine& line)>& take, std::vector<std::string>& skipped);

}  // namespace troupe
