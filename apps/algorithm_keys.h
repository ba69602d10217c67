// The section [algorithm]: a name stands for a preset (training/algorithms.h), whose values fill the keys that nobody
// has set.
#pragma once

#include "apps/config.h"
#include "training/algorithms.h"

namespace troupe::apps {

/// The keys of the section, in reading order, with the values of algorithm.name's default.
std::vector<KeySpec> algorithm_keys();
/// Gives every key that still has its default the value of the preset that algorithm.name names.
void fill_from_preset(Config& config);
/// The options as configured, with what follows from sampling.max_new_tokens. UsageError naming the keys that do not go
/// together.
AlgorithmOptions algorithm_options(const Config& config);

}  // namespace troupe::apps
