// An asynchronous run is trained again from the batches it kept, without workers and rewards, to the same weights.
#include "actors/batch_store.h"
#include "tests/actors/tiny_run.h"

namespace troupe {
namespace {

using namespace actor_tests;

TrainBatch small_batch() {
  TrainBatch batch;
  batch.step = 3;
  batch.groups = {4, 5};
  batch.trajectories = {make_trajectory(make_sample_id(4, 0), 1, 2), make_trajectory(make_sample_id(5, 1), 0, 1)};
  return batch;
}

}  // namespace

TEST_CASE("a kept batch comes back as it was; a broken, missing or misnamed one is named") {
  TemporaryFolder folder("batches");
  const auto batch = small_batch();
  write_batch(folder.path, batch);
  const auto copy = read_batch(folder.path, 3);
  CHECK(copy.step == 3);
  CHECK((copy.groups == batch.groups));
  CHECK((copy.trajectories == batch.trajectories));
  CHECK(last_recorded_step(folder.path) == 0);  // step 1 is not there
  CHECK_THROWS_WITH_AS(read_batch(folder.path, 2), doctest::Contains("step-2.bin"), Error);
  auto bytes = read_file(batch_path(folder.path, 3));
  std::ofstream(batch_path(folder.path, 2)) << bytes;
  CHECK_THROWS_WITH_AS(read_batch(folder.path, 2), doctest::Contains("holds the batch of step 3"), Error);
  bytes[60] = static_cast<char>(bytes[60] ^ 1);
  std::ofstream(batch_path(folder.path, 3)) << bytes;
  CHECK_THROWS_WITH_AS(read_batch(folder.path, 3), doctest::Contains("not those that were written"), Error);
}

TEST_CASE("a replay of an asynchronous run reaches its weights bit for bit, and those of each step before") {
  TinyRun run("replay");
  run.topology.run.record_batches = true;
  run.topology.run.steps = 5;
  run.topology.async_loop.target_offpolicy_steps = 1;
  run.topology.checkpoint.enable = false;
  REQUIRE(run.play() == 0);
  CHECK(last_recorded_step(run.run_folder()) == 5);
  auto again = run.topology;
  again.run.folder = (run.folder.path / "again").string();
  REQUIRE(run_replay(again, run.topology.run.folder, 0) == 0);
  CHECK(model_bytes(run.run_folder() / "model") == model_bytes(run.folder.path / "again" / "model"));
  // A part of it is another model, and the same each time.
  again.run.folder = (run.folder.path / "part").string();
  REQUIRE(run_replay(again, run.topology.run.folder, 3) == 0);
  CHECK(model_bytes(run.run_folder() / "model") != model_bytes(run.folder.path / "part" / "model"));
  CHECK(read_json_lines(run.folder.path / "part" / "metrics.jsonl").size() == 3);
  CHECK_THROWS_WITH_AS(run_replay(again, run.topology.run.folder, 6), doctest::Contains("recorded 5 steps"),
                       UsageError);
  CHECK_THROWS_WITH_AS(run_replay(again, (run.folder.path / "model").string(), 0),
                       doctest::Contains("run.record_batches"), UsageError);
}

}  // namespace troupe
