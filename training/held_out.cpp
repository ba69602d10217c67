#include "training/held_out.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string>

#include "base/error.h"
#include "base/hash.h"

namespace troupe {

double held_out_share(std::string_view text) {
  const auto digits = xxh3_128(std::as_bytes(std::span(text))).substr(0, 8);
  return static_cast<double>(std::stoul(digits, nullptr, 16)) * 0x1.0p-32;
}

double held_out_limit(const std::vector<double>& shares, double fraction) {
  require(shares.size() >= 2, "one record cannot be split into training and validation: name a validation file");
  const auto [least, most] = std::minmax_element(shares.begin(), shares.end());
  require(*least < *most, "all records are the same: there is nothing to validate on");
  return std::clamp(fraction, std::nextafter(*least, 2.0), *most);
}

}  // namespace troupe
