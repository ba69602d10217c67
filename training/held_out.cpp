#include "training/held_out.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <string>

#include "base/error.h"
#include "base/hash.h"
#include "training/choices.h"

namespace troupe {

double held_out_share(std::string_view text) {
  const auto digits = xxh3_128(std::as_bytes(std::span(text))).substr(0, 8);
  return static_cast<double>(std::stoul(digits, nullptr, 16)) * 0x1.0p-32;
}

std::vector<size_t> members_of_split(const std::string& split, const std::vector<double>& shares, double fraction) {
  enum class Split { kAll, kTrain, kValidation };
  const auto wanted = choose<Split>(
      "data.split", split, {{"all", Split::kAll}, {"train", Split::kTrain}, {"validation", Split::kValidation}});
  std::vector<size_t> members(shares.size());
  std::iota(members.begin(), members.end(), size_t{0});
  if (wanted == Split::kAll) return members;
  require(shares.size() >= 2, "one record cannot be split into training and validation: name a validation file");
  const auto [least, most] = std::minmax_element(shares.begin(), shares.end());
  require(*least < *most, "all records are the same: there is nothing to validate on");
  const auto limit = std::clamp(fraction, std::nextafter(*least, 2.0), *most);
  std::erase_if(members, [&](size_t i) { return (shares[i] < limit) != (wanted == Split::kValidation); });
  return members;
}

}  // namespace troupe
