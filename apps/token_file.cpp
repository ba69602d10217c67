#include "apps/token_file.h"

#include <sys/stat.h>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"

namespace troupe::apps {

std::string read_token_file(const std::string& key, const std::string& path) {
  std::string text;
  try {
    text = read_file(path);
  } catch (const Error& error) {
    throw UsageError(concat(key, ": ", error.what()));
  }
  const auto end = text.find_first_of("\r\n");
  const auto token = text.substr(0, end);
  if (token.empty()) throw UsageError(concat(key, " = ", path, ": the first line holds the token, and it is empty"));
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && (status.st_mode & S_IROTH) != 0)
    log::warning(key, " = ", path, " can be read by everybody on this machine (chmod 600)");
  return token;
}

}  // namespace troupe::apps
