#include "parallel/device_figures.h"

#include <vector>

#include "base/error.h"

namespace troupe {

DeviceFigures known_device(const std::string& name) {
  constexpr double kTera = 1e12, kGiga = 1e9;
  static const std::vector<DeviceFigures> known = {
      {"A100", 312 * kTera, 80 * kGiga, 2039 * kGiga, 300 * kGiga, 25 * kGiga},
      {"H100", 989 * kTera, 80 * kGiga, 3350 * kGiga, 450 * kGiga, 50 * kGiga},
      {"H200", 989 * kTera, 141 * kGiga, 4800 * kGiga, 450 * kGiga, 50 * kGiga},
      {"B200", 2250 * kTera, 180 * kGiga, 7700 * kGiga, 900 * kGiga, 50 * kGiga},
  };
  std::string names;
  for (const auto& device : known) {
    if (device.name == name) return device;
    names += (names.empty() ? "" : ", ") + device.name;
  }
  throw UsageError(concat("no figures of a device \"", name, "\"; known: ", names));
}

}  // namespace troupe
