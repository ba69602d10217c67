// Any text given as a configuration: a usage error or a configuration that prints, never a crash.
#include "apps/config.h"
#include "base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const auto config =
        troupe::apps::Config::from_text(std::string(reinterpret_cast<const char*>(data), size), "fuzz.toml", {});
    troupe::apps::Config::from_text(config.print(false), "again.toml", {});
  } catch (const troupe::Error&) {
  }
  return 0;
}
