// The fixture folder of every family that has more than the plain decoder: tests that hold for each of them go through
// this list.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace troupe::testing {

inline std::filesystem::path family_fixtures() { return TROUPE_SOURCE_DIR "/tests/fixtures/models"; }

inline std::vector<std::string> family_folders() {
  return {"smollm3",  "olmo3",       "gemma3", "mixtral",    "qwen3_moe", "gpt_oss",
          "glm4_moe", "deepseek_v3", "llama4", "qwen3_next", "qwen3_5"};
}

}  // namespace troupe::testing
