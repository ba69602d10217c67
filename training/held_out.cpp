#include "training/held_out.h"

#include <span>
#include <string>

#include "base/hash.h"

namespace troupe {

double held_out_share(std::string_view text) {
  const auto digits = xxh3_128(std::as_bytes(std::span(text))).substr(0, 8);
  return static_cast<double>(std::stoul(digits, nullptr, 16)) * 0x1.0p-32;
}

}  // namespace troupe
