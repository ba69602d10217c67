// Which texts are kept away from training: a share by hash, so that twins stay together and no seed or order matters.
#pragma once

#include <string_view>
#include <vector>

namespace troupe {

/// A number in [0, 1) that depends on the text alone; a text is held out where it lies below the wanted fraction.
double held_out_share(std::string_view text);

/// The limit below which shares are held out: `fraction`, moved as little as leaves at least one text on either side.
/// Throws Error where there are fewer than two texts or all are the same.
double held_out_limit(const std::vector<double>& shares, double fraction);

}  // namespace troupe
