#include "base/run_folder.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "tests/doctest.h"

namespace troupe {
namespace {

struct Folder {
  std::filesystem::path path = std::filesystem::path(TROUPE_BINARY_DIR) / "run_folder_test";
  Folder() { std::filesystem::remove_all(path); }
  ~Folder() { std::filesystem::remove_all(path); }
};

std::vector<int64_t> steps(const std::filesystem::path& path) {
  std::vector<int64_t> all;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) all.push_back(nlohmann::json::parse(line).at("step"));
  return all;
}

}  // namespace

TEST_CASE("a resumed run cuts the lines after its step and half-written ends") {
  Folder folder;
  {
    RunFolder run(folder.path, -1);
    for (int step = 0; step < 5; ++step) {
      run.metrics().append({{"step", step}, {"loss/mean", 0.5}});
      run.journal().append({{"step", step}});
    }
    run.sync();
  }
  std::ofstream(folder.path / "journal.jsonl", std::ios::app) << "{\"step\": 1, \"sam";
  std::ofstream(folder.path / "rollout_samples.jsonl") << "{\"step\": 1}\n{\"step\": \"two\"}\n";
  {
    RunFolder run(folder.path, 2);
    run.metrics().append({{"step", 3}});
  }
  CHECK(steps(folder.path / "metrics.jsonl") == std::vector<int64_t>{0, 1, 2, 3});
  CHECK(steps(folder.path / "journal.jsonl") == std::vector<int64_t>{0, 1, 2});
  CHECK(steps(folder.path / "rollout_samples.jsonl") == std::vector<int64_t>{1});
  // A run that begins anew keeps what was there aside.
  RunFolder anew(folder.path, -1);
  CHECK(read_file(folder.path / "metrics.jsonl").empty());
  CHECK(steps(folder.path / "metrics.jsonl.set-aside") == std::vector<int64_t>{0, 1, 2, 3});
}

TEST_CASE("a run folder has one owner at a time") {
  Folder folder;
  {
    RunFolder first(folder.path, -1);
    first.metrics().append({{"step", 1}});
    CHECK_THROWS_WITH(RunFolder(folder.path, -1), doctest::Contains("is in use by another process"));
    CHECK(steps(folder.path / "metrics.jsonl") == std::vector<int64_t>{1});
  }
  RunFolder second(folder.path, 1);
  CHECK(steps(folder.path / "metrics.jsonl") == std::vector<int64_t>{1});
}

TEST_CASE("a full disk and a folder that cannot be made are named; half characters do not stop a run") {
  if (std::filesystem::exists("/dev/full")) {
    JsonLinesFile full("/dev/full");
    CHECK_THROWS_WITH(full.append({{"step", 1}}), doctest::Contains("/dev/full: No space left"));
  }
  CHECK_THROWS_WITH(RunFolder("/proc/no_such_folder/run", -1), doctest::Contains("/proc/no_such_folder"));
  Folder folder;
  RunFolder run(folder.path, -1);
  run.samples().append({{"step", 1}, {"completion", "\xe2\x82"}});
  CHECK(steps(folder.path / "rollout_samples.jsonl") == std::vector<int64_t>{1});
}

}  // namespace troupe
