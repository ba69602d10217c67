// Replays every model folder of the fixtures: logits, loss and gradients of an independent implementation.
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "models/verify.h"
#include "tests/doctest.h"
#include "tests/models/unsupported_fixtures.h"

namespace troupe {
namespace {

std::filesystem::path fixtures_folder() {
  const char* folder = std::getenv("TROUPE_FIXTURES");
  return folder != nullptr ? folder : TROUPE_SOURCE_DIR "/tests/fixtures";
}

std::vector<std::filesystem::path> model_folders() {
  std::vector<std::filesystem::path> folders;
  for (const auto& entry : std::filesystem::directory_iterator(fixtures_folder() / "models")) {
    if (entry.is_directory()) folders.push_back(entry.path());
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

}  // namespace

TEST_SUITE("fixtures") {
  TEST_CASE("fixture models") {
    const auto folders = model_folders();
    REQUIRE(!folders.empty());
    for (size_t i = 0; i < folders.size(); ++i) {
      const std::string name = folders[i].filename().string();
      const std::string line = "models/" + name + "/expected.safetensors#" + std::to_string(i) + " " + name;
      if (unsupported_fixture_models().contains(name)) {
        std::printf("%s unsupported max=nan\n", line.c_str());
        continue;
      }
      const VerifyResult result = verify_model_folder(folders[i]);
      std::printf("%s %s max=%.3g\n", line.c_str(), result.ok ? "ok" : "FAIL",
                  std::max({result.logits_max_abs, result.loss_abs, result.grad_max_abs}));
      CHECK_MESSAGE(result.ok, name, ": ", result.error);
    }
    std::fflush(stdout);
  }
}

}  // namespace troupe
