// What a device and its links do a second, as their makers state it: the ground of estimates (parallel/step_estimate).
#pragma once

#include <string>

namespace troupe {

struct DeviceFigures {
  std::string name;
  double peak_flops = 0;           // dense products in bfloat16, a second
  double memory_bytes = 0;         // of one device
  double memory_bytes_per_s = 0;   // to its memory
  double node_bytes_per_s = 0;     // one direction, to devices of its node
  double network_bytes_per_s = 0;  // one direction, its share of the node's network
  int devices_per_node = 8;
  double efficiency = 0.45;  // share of the peak that a whole layer reaches, small operations included
};
/// By name, as the makers state them; UsageError lists the known ones.
DeviceFigures known_device(const std::string& name);

}  // namespace troupe
