// Which records of which files a source reads, and in which order: what texts, chats and pairs have in common.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace troupe {

struct DataFileOptions {
  std::vector<std::string> paths;
  std::string split = "all";          // "train", "validation": by validation_fraction; "all"
  double validation_fraction = 0.05;  // of the records, by a hash of their text; at least one record on either side
  uint64_t seed = 0;
  bool shuffle = true;
  bool skip_bad_lines = false;
};

}  // namespace troupe
