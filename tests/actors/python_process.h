// Real Python processes for tests of remote rewards and environments.
#pragma once

#include <cstdlib>

#include "base/error.h"
#include "base/file.h"
#include "tests/doctest.h"

namespace troupe::actor_tests {

/// "PYTHONPATH=... PYTHON SCRIPT" with an interpreter that has pyzmq (Debian's python3-zmq, scripts/install-deps).
inline std::string python_command(const std::filesystem::path& script) {
  static const std::string python = [] {
    for (const std::string name : {"python3", "/usr/bin/python3"})
      if (std::system((name + " -c 'import zmq' 2>/dev/null").c_str()) == 0) return name;
    return std::string();
  }();
  REQUIRE_MESSAGE(!python.empty(), "no Python with pyzmq: scripts/install-deps");
  return concat("PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=" TROUPE_SOURCE_DIR "/python exec ", python, " ",
                script.string());
}

inline std::filesystem::path write_script(const std::filesystem::path& path, const std::string& text) {
  make_folders(path.parent_path());
  write_file_atomically(path, "from troupe_reward import *\nimport os, sys, time\n" + text);
  return path;
}

}  // namespace troupe::actor_tests
