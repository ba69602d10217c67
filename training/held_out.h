// Which texts are kept away from training: a share by hash, so that twins stay together and no seed or order matters.
#pragma once

#include <string_view>

namespace troupe {

/// A number in [0, 1) that depends on the text alone; a text is held out where it lies below the wanted fraction.
double held_out_share(std::string_view text);

}  // namespace troupe
