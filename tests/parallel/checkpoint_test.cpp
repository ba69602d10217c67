// Checkpoints: any number of ranks reads what any number wrote, bit for bit; a save that dies leaves nothing that
// resumes.
#include "parallel/checkpoint.h"

#include <sys/resource.h>

#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/log.h"
#include "base/philox.h"
#include "parallel/checkpoint_folder.h"
#include "parallel/tensor_slices.h"
#include "tests/doctest.h"
#include "tests/parallel/checkpoint_state.h"
#include "tests/parallel/processes.h"

using namespace troupe;
using namespace troupe::parallel_testing;

namespace {

namespace fs = std::filesystem;

std::string warnings;
void collect_warnings(std::string_view line) { warnings += std::string(line) + "\n"; }

std::vector<int64_t> elements_of(Tensor places, const TensorBox& box) {
  for (size_t i = 0; i < box.start.size(); ++i)
    places = places.narrow(static_cast<int64_t>(i), box.start[i], box.size[i]);
  const auto flat = places.contiguous();
  return {flat.const_data_ptr<int64_t>(), flat.const_data_ptr<int64_t>() + flat.numel()};
}

}  // namespace

TEST_CASE("ranges of a flattened tensor become boxes, of a part too, without loss") {
  for (const auto& shape : {std::vector<int64_t>{}, {7}, {3, 5}, {2, 3, 4}, {4, 1, 3}}) {
    const int64_t numel = c10::multiply_integers(shape);
    const auto places = at::arange(numel, at::kLong).view(shape);
    for (int64_t begin = 0; begin <= numel; ++begin) {
      for (int64_t end = begin; end <= numel; ++end) {
        std::vector<int64_t> elements;
        for (const auto& box : boxes_of_range(shape, begin, end)) {
          for (const auto place : elements_of(places, box)) elements.push_back(place);
        }
        std::vector<int64_t> expected;
        for (int64_t i = begin; i < end; ++i) expected.push_back(i);
        CHECK(elements == expected);
      }
    }
  }
  // Columns 2 to 4 of rows 1 and 2, as tensor parallelism has them: elements 1 to 4 of that part.
  const auto places = at::arange(18, at::kLong).view({3, 6});
  std::vector<int64_t> elements;
  for (const auto& box : boxes_in_part({{1, 2}, {2, 3}}, 1, 5))
    for (const auto place : elements_of(places, box)) elements.push_back(place);
  CHECK(elements == std::vector<int64_t>{9, 10, 14, 15});
  CHECK((intersection({{0, 0}, {2, 4}}, {{1, 3}, {5, 5}}) == TensorBox{{1, 3}, {1, 1}}));
  CHECK(!intersection({{0, 0}, {2, 4}}, {{2, 0}, {1, 4}}));
}

TEST_CASE("1 -> 2 -> 4 -> 1 ranks keep weights and optimizer states bit for bit") {
  TestFolder folder("checkpoints");
  save_state(folder.path, 1, 1, 0.25);
  int64_t step = 1;
  int reader = 2;
  for (const int next : {4, 1, 3}) {
    run_ranks(reader, [&](Collectives& collectives) {
      CheckpointState state(collectives);
      auto values = state.values();
      load_checkpoint_values(find_latest_checkpoint(folder.path).value().path, values);
      state.check(0.25);
      CheckpointWriter writer(collectives, {true});
      writer.save({folder.path, step + 1, 0, "{}", "", 0}, values);
      writer.wait();
      collectives.barrier("saved");
    });
    ++step;
    reader = next;
  }
  load_and_check(folder.path, reader, 0.25);
  CHECK(find_latest_checkpoint(folder.path)->step == 4);
}

TEST_CASE("B082 a half-written checkpoint is not resumed, and is named with the reason") {
  TestFolder folder("checkpoints");
  save_state(folder.path, 2, 100, 1);
  const auto broken = folder.path / "step-200";
  const std::vector<std::pair<std::function<void()>, std::string>> faults = {
      {[&] { fs::remove(broken / "rank-1.safetensors"); }, "rank-1.safetensors is missing"},
      {[&] { fs::resize_file(broken / "rank-0.safetensors", 100); }, "has 100 bytes instead of"},
      {[&] { fs::remove(broken / "manifest.json"); }, "has no manifest.json"},
      {[&] { std::ofstream(broken / "manifest.json") << "{"; }, "is not JSON"},
      {[&] {
         std::fstream file(broken / "rank-0.safetensors", std::ios::in | std::ios::out | std::ios::binary);
         file.seekp(-1, std::ios::end);
         file.put('\x55');
       },
       "its hash differs"}};
  for (const auto& [damage, reason] : faults) {
    save_state(folder.path, 2, 200, 2);
    damage();
    warnings.clear();
    log::set_console_sink(collect_warnings);
    const auto found = find_latest_checkpoint(folder.path);
    log::set_console_sink(nullptr);
    REQUIRE(found.has_value());
    CHECK(found->step == 100);
    CHECK(found->state_json == "{\"step\":100}");
    CHECK(found->groups == "groups");
    CHECK_MESSAGE(warnings.find("step-200") != std::string::npos, warnings);
    CHECK_MESSAGE(warnings.find(reason) != std::string::npos, warnings);
  }
  CHECK(!find_latest_checkpoint(folder.path / "nowhere").has_value());
}

TEST_CASE("B083 what a killed save left behind is replaced") {
  TestFolder folder("checkpoints");
  // What a kill in the middle leaves: a partial folder with one rank's file, and an old note of it.
  const auto partial = folder.path / "step-7.partial";
  make_folders(partial);
  write_file_synced(partial / "rank-0.safetensors", "half");
  write_file_synced(partial / "rank-1.json", "{}");
  CHECK(!find_latest_checkpoint(folder.path).has_value());
  save_state(folder.path, 2, 7, 3);
  CHECK(!fs::exists(partial));
  load_and_check(folder.path, 2, 3);
  save_state(folder.path, 4, 7, 4);  // the same step again: replaced as a whole
  CHECK(!fs::exists(folder.path / "step-7" / "rank-4.safetensors"));
  load_and_check(folder.path, 1, 4);
}

TEST_CASE("B085 an asynchronous checkpoint holds the values of the moment of the call") {
  TestFolder folder("checkpoints");
  run_ranks(2, [&](Collectives& collectives) {
    CheckpointState state(collectives);
    state.fill(5);
    CheckpointWriter writer(collectives, {true});
    writer.save({folder.path, 1, 1, "{\"step\":1}", "", 0}, state.values());
    state.fill(6);  // at once
    writer.wait();
    collectives.barrier("saved");
  });
  load_and_check(folder.path, 2, 5);
  CHECK(find_latest_checkpoint(folder.path)->state_json == "{\"step\":1}");
}

TEST_CASE("the newest k stay") {
  TestFolder folder("checkpoints");
  run_ranks(2, [&](Collectives& collectives) {
    CheckpointState state(collectives);
    CheckpointWriter writer(collectives, {});
    for (int64_t step = 1; step <= 12; ++step) writer.save({folder.path, step, step, "{}", "", 3}, state.values());
  });
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder.path)) names.insert(entry.path().filename().string());
  CHECK(names == std::set<std::string>{"step-10", "step-11", "step-12"});
}

TEST_CASE("a write that fails names its path at the next call and leaves the older checkpoint") {
  TestFolder folder("checkpoints");
  save_state(folder.path, 1, 1, 7);
  auto ranks = make_thread_collectives(1, std::chrono::seconds(5));
  CheckpointState state(*ranks[0]);
  state.fill(8);
  CheckpointWriter writer(*ranks[0], {true});
  // A file size limit stands for the full disk: the write fails in the middle.
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{4096, before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  writer.save({folder.path, 2, 2, "{}", "", 0}, state.values());
  std::string error;
  try {
    writer.wait();
  } catch (const Error& caught) {
    error = caught.what();
  }
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, old_handler);
  CHECK_MESSAGE(error.find("step-2 was not written") != std::string::npos, error);
  CHECK_MESSAGE(error.find("rank-0.safetensors") != std::string::npos, error);
  CHECK(!fs::exists(folder.path / "step-2.partial"));
  load_and_check(folder.path, 1, 7);
  writer.save({folder.path, 3, 3, "{}", "", 0}, state.values());  // and the writer goes on
  writer.wait();
  load_and_check(folder.path, 2, 8);

  CheckpointWriter nowhere(*ranks[0], {});
  CHECK_THROWS_WITH_AS(nowhere.save({folder.path / "step-1" / "state.json", 1, 1, "{}", "", 0}, state.values()),
                       doctest::Contains("state.json"), Error);
}

TEST_CASE("checkpoints beyond where a run begins are set aside, not resumed and not counted") {
  TestFolder folder("checkpoints");
  for (const int64_t step : {10, 20, 30}) save_state(folder.path, 1, step, static_cast<double>(step));
  warnings.clear();
  log::set_console_sink(collect_warnings);
  set_aside_checkpoints(folder.path, 10);
  make_folders(folder.path / "step-15.partial");
  CHECK(find_latest_checkpoint(folder.path)->step == 10);
  log::set_console_sink(nullptr);
  CHECK(fs::exists(folder.path / "step-30.set-aside" / "manifest.json"));
  for (const auto* part : {"step-20.set-aside", "step-30.set-aside", "step-15.partial"})
    CHECK_MESSAGE(warnings.find(part) != std::string::npos, warnings);
  // The new future's save takes away what an earlier one left, and the newest k are counted without the old future.
  run_ranks(1, [&](Collectives& collectives) {
    CheckpointState state(collectives);
    CheckpointWriter writer(collectives, {});
    writer.save({folder.path, 16, 16, "{}", "", 2}, state.values());
  });
  CHECK(checkpoints_newest_first(folder.path) ==
        std::vector<fs::path>{folder.path / "step-16", folder.path / "step-10"});
  CHECK(!fs::exists(folder.path / "step-15.partial"));
}

TEST_CASE("a write that failed is told between two steps without waiting, and a lost peer's part ends with the grace") {
  TestFolder folder("checkpoints");
  auto ranks = make_thread_collectives(2, std::chrono::seconds(20));
  const auto errors = run_ranks_collecting(ranks, [&](Collectives& collectives) {
    CheckpointState state(collectives);
    if (collectives.rank() == 0) {
      const auto begin = std::chrono::steady_clock::now();
      {
        CheckpointWriter writer(collectives, {.is_async = true, .grace = std::chrono::milliseconds(100)});
        writer.save({folder.path, 1, 1, "{}", "", 0}, state.values());
        CHECK_NOTHROW(writer.check());
      }
      CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
    } else {
      collectives.barrier("checkpoint of step 1");  // and is gone before it has written anything
    }
  });
  for (const auto& error : errors) CHECK(error == "");
  CHECK(fs::is_empty(folder.path));

  auto alone = make_thread_collectives(1, std::chrono::seconds(5));
  CheckpointState own(*alone[0]);
  CheckpointWriter writer(*alone[0], {true});
  writer.save({folder.path, 2, 2, "{}", "", 0, "no JSON"}, own.values());
  std::string error;
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (error.empty() && std::chrono::steady_clock::now() < limit) {
    try {
      writer.check();
    } catch (const Error& caught) {
      error = caught.what();
    }
  }
  CHECK_MESSAGE(error.find("step-2 was not written") != std::string::npos, error);
  CHECK_NOTHROW(writer.check());  // told once
}

TEST_CASE("B088 each rank's next random number after a resume is the unbroken run's, and the ranks differ") {
  TestFolder folder("checkpoints");
  constexpr uint64_t kSeed = 11;
  const auto draw = [](int rank, int64_t index) {
    return random_uniform(kSeed, static_cast<uint64_t>(rank), static_cast<uint32_t>(index), RandomStream::kSampling);
  };
  // A number is a function of its place, so what a checkpoint holds of a stream is how far each rank has come.
  run_ranks(2, [&](Collectives& collectives) {
    auto counts = at::zeros({2}, at::kLong);
    collectives.all_gather(counts, at::full({1}, collectives.rank() == 0 ? 3 : 7, at::kLong), "numbers drawn");
    CheckpointState state(collectives);
    CheckpointWriter writer(collectives, {true});
    writer.save({folder.path, 1, 1, concat("[", counts[0].item<int64_t>(), ",", counts[1].item<int64_t>(), "]"), "", 0},
                state.values());
    writer.wait();
    collectives.barrier("saved");
  });
  std::vector<double> next(2);
  run_ranks(2, [&](Collectives& collectives) {
    const auto counts = nlohmann::json::parse(find_latest_checkpoint(folder.path)->state_json);
    const auto rank = static_cast<size_t>(collectives.rank());
    next[rank] = draw(collectives.rank(), counts.at(rank).get<int64_t>());
  });
  const std::vector<int64_t> drawn{3, 7};
  for (int rank = 0; rank < 2; ++rank) {
    double unbroken = 0;
    for (int64_t i = 0; i <= drawn[static_cast<size_t>(rank)]; ++i) unbroken = draw(rank, i);
    CHECK(next[static_cast<size_t>(rank)] == unbroken);
  }
  CHECK(next[0] != next[1]);
}
