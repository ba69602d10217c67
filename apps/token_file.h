// The token that workers show when they join: the first line of a file, so that it stands on no command line.
#pragma once

#include <string>

namespace troupe::apps {

/// Throws UsageError naming `key` where the file cannot be read or holds no token; warns where everybody may read it.
std::string read_token_file(const std::string& key, const std::string& path);

}  // namespace troupe::apps
