// Small things with words: joining, and the nearest known name for error messages.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace troupe {

/// The candidate with the smallest edit distance (a swap of neighbours counts once), or "" where none is near: more
/// than a third of the word's letters would change.
std::string nearest_name(std::string_view word, const std::vector<std::string>& candidates);

/// "a, b, c".
std::string join(const std::vector<std::string>& words, std::string_view separator);

/// Without white space (ASCII) at both ends.
std::string_view trim(std::string_view text);

}  // namespace troupe
