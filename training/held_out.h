// Which texts are kept away from training: a share by hash, so that twins stay together and no seed or order matters.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

/// A number in [0, 1) that depends on the text alone; a text is held out where it lies below the wanted fraction.
double held_out_share(std::string_view text);

/// The records of one split, by their shares: "all", or "train" and "validation" where the held-out ones lie below
/// `fraction`, moved as little as leaves at least one record on either side. Throws UsageError for another split;
/// Error where there are fewer than two records to split or all are the same.
std::vector<size_t> members_of_split(const std::string& split, const std::vector<double>& shares, double fraction);

}  // namespace troupe
