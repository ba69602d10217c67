#include "training/json_lines.h"

#include "base/error.h"

namespace troupe {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

bool is_blank(std::string_view text) { return text.find_first_not_of(" \t\r\n\f\v") == std::string_view::npos; }

}  // namespace

void read_json_lines(const std::string& path, std::string_view text, bool skip_bad_lines,
                     const std::function<std::string(const JsonLine& line)>& take, std::vector<std::string>& skipped) {
  if (text.substr(0, kByteOrderMark.size()) == kByteOrderMark) text.remove_prefix(kByteOrderMark.size());
  JsonLine line;
  while (!text.empty()) {
    ++line.number;
    const auto end = text.find('\n');
    line.bytes = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (!line.bytes.empty() && line.bytes.back() == '\r') line.bytes.remove_suffix(1);
    if (is_blank(line.bytes)) continue;
    line.object = nlohmann::json::parse(line.bytes, nullptr, /*allow_exceptions=*/false);
    std::string reason;
    if (line.object.is_discarded())
      reason = "is not JSON";
    else if (!line.object.is_object())
      reason = "is not a JSON object";
    else
      reason = take(line);
    if (reason.empty()) continue;
    const auto message = concat(path, ":", line.number, ": ", reason);
    require(skip_bad_lines, message);
    skipped.push_back(message);
  }
}

}  // namespace troupe
