#include "actors/spawn.h"

#include <atomic>

namespace troupe {
namespace {
std::atomic<int64_t> stray_errors{0};
}

int64_t num_stray_errors() { return stray_errors; }
void count_stray_error() { ++stray_errors; }

}  // namespace troupe
