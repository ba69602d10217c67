// Checkpoints: any number of ranks reads what any number wrote, bit for bit; a save that dies leaves nothing that
// resumes.
#include "parallel/checkpoint.h"

#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "parallel/tensor_slices.h"
#include "tests/doctest.h"
#include "tests/parallel/ranks.h"
#include "tests/parallel/tiny_model.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

namespace fs = std::filesystem;

struct Folder {
  fs::path path = fs::temp_directory_path() / concat("troupe-checkpoints-", ::getpid());
  Folder() { fs::remove_all(path); }
  ~Folder() { fs::remove_all(path); }
};

/// A sharded model with optimizer state whose values are a function of the element's place in the whole tensor.
struct State {
  Decoder decoder;
  FullyShardedDecoder model;
  std::map<std::string, std::vector<Tensor>> optimizer;

  explicit State(Collectives& collectives) : decoder(tiny_config(false)), model(decoder, collectives, {}) {
    for (const auto& shard : model.shards()) {
      for (const char* kind : {"exp_avg", "exp_avg_sq"}) optimizer[kind].push_back(at::zeros_like(shard.parameter));
    }
  }
  ShardedValues values() { return sharded_values(model, optimizer); }
  void fill(double seed) {
    for (auto& [kind, units] : values().kinds) {
      for (const auto& piece : model.pieces()) {
        units[static_cast<size_t>(piece.unit)]
            .narrow(0, piece.shard_begin, piece.flat_end - piece.flat_begin)
            .copy_(wanted(kind, piece, seed));
      }
    }
  }
  void check(double seed) {
    for (auto& [kind, units] : values().kinds) {
      for (const auto& piece : model.pieces()) {
        const auto part =
            units[static_cast<size_t>(piece.unit)].narrow(0, piece.shard_begin, piece.flat_end - piece.flat_begin);
        require(at::equal(part, wanted(kind, piece, seed)), kind, " of ", piece.name, " differs");
      }
    }
  }
  static Tensor wanted(const std::string& kind, const ShardPiece& piece, double seed) {
    const auto index = at::arange(piece.flat_begin, piece.flat_end, at::kDouble);
    return at::sin(index * 0.7 + seed + static_cast<double>(kind.size() + piece.name.size())).to(at::kFloat);
  }
};

void save(const fs::path& folder, int size, int64_t step, double seed, bool is_async = false) {
  run_ranks(size, [&](Collectives& collectives) {
    State state(collectives);
    state.fill(seed);
    CheckpointWriter writer(collectives, is_async);
    writer.save({folder, step, step, concat("{\"step\":", step, "}"), "groups", 0}, state.values());
    writer.wait();
    collectives.barrier("saved");
  });
}

void load_and_check(const fs::path& folder, int size, double seed) {
  run_ranks(size, [&](Collectives& collectives) {
    State state(collectives);
    auto values = state.values();
    load_checkpoint_values(find_latest_checkpoint(folder).value().path, values);
    state.check(seed);
  });
}

std::string warnings;
void collect_warnings(std::string_view line) { warnings += std::string(line) + "\n"; }

}  // namespace

TEST_CASE("ranges of a flattened tensor become boxes, and boxes runs, without loss") {
  for (const auto& shape : {std::vector<int64_t>{}, {7}, {3, 5}, {2, 3, 4}, {4, 1, 3}}) {
    const int64_t numel = c10::multiply_integers(shape);
    for (int64_t begin = 0; begin <= numel; ++begin) {
      for (int64_t end = begin; end <= numel; ++end) {
        std::vector<int64_t> elements;
        for (const auto& box : boxes_of_range(shape, begin, end)) {
          const auto before = elements.size();
          for_each_run(shape, box, [&](int64_t flat, int64_t in_box, int64_t length) {
            CHECK(in_box == static_cast<int64_t>(elements.size() - before));
            for (int64_t i = 0; i < length; ++i) elements.push_back(flat + i);
          });
        }
        std::vector<int64_t> expected;
        for (int64_t i = begin; i < end; ++i) expected.push_back(i);
        CHECK(elements == expected);
      }
    }
  }
  // A box that no flat range gives: a column block, as tensor parallelism has it.
  std::vector<int64_t> columns;
  for_each_run({3, 6}, {{1, 2}, {2, 3}}, [&](int64_t flat, int64_t, int64_t length) {
    for (int64_t i = 0; i < length; ++i) columns.push_back(flat + i);
  });
  CHECK(columns == std::vector<int64_t>{8, 9, 10, 14, 15, 16});
}

TEST_CASE("1 -> 2 -> 4 -> 1 ranks keep weights and optimizer states bit for bit") {
  Folder folder;
  save(folder.path, 1, 1, 0.25);
  int64_t step = 1;
  int reader = 2;
  for (const int next : {4, 1, 3}) {
    run_ranks(reader, [&](Collectives& collectives) {
      State state(collectives);
      auto values = state.values();
      load_checkpoint_values(find_latest_checkpoint(folder.path).value().path, values);
      state.check(0.25);
      CheckpointWriter writer(collectives, true);
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
  Folder folder;
  save(folder.path, 2, 100, 1);
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
    save(folder.path, 2, 200, 2);
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
  Folder folder;
  // What a kill in the middle leaves: a partial folder with one rank's file, and an old note of it.
  const auto partial = folder.path / "step-7.partial";
  make_folders(partial);
  write_file_synced(partial / "rank-0.safetensors", "half");
  write_file_synced(partial / "rank-1.json", "{}");
  CHECK(!find_latest_checkpoint(folder.path).has_value());
  save(folder.path, 2, 7, 3);
  CHECK(!fs::exists(partial));
  load_and_check(folder.path, 2, 3);
  save(folder.path, 4, 7, 4);  // the same step again: replaced as a whole
  CHECK(!fs::exists(folder.path / "step-7" / "rank-4.safetensors"));
  load_and_check(folder.path, 1, 4);
}

TEST_CASE("B085 an asynchronous checkpoint holds the values of the moment of the call") {
  Folder folder;
  run_ranks(2, [&](Collectives& collectives) {
    State state(collectives);
    state.fill(5);
    CheckpointWriter writer(collectives, true);
    writer.save({folder.path, 1, 1, "{\"step\":1}", "", 0}, state.values());
    state.fill(6);  // at once
    writer.wait();
    collectives.barrier("saved");
  });
  load_and_check(folder.path, 2, 5);
  CHECK(find_latest_checkpoint(folder.path)->state_json == "{\"step\":1}");
}

TEST_CASE("the newest k stay") {
  Folder folder;
  run_ranks(2, [&](Collectives& collectives) {
    State state(collectives);
    CheckpointWriter writer(collectives, false);
    for (int64_t step = 1; step <= 12; ++step) writer.save({folder.path, step, step, "{}", "", 3}, state.values());
  });
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder.path)) names.insert(entry.path().filename().string());
  CHECK(names == std::set<std::string>{"step-10", "step-11", "step-12"});
}

TEST_CASE("a write that fails names its path at the next call and leaves the older checkpoint") {
  Folder folder;
  save(folder.path, 1, 1, 7);
  auto ranks = make_thread_collectives(1, std::chrono::seconds(5));
  State state(*ranks[0]);
  state.fill(8);
  CheckpointWriter writer(*ranks[0], true);
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

  CheckpointWriter nowhere(*ranks[0], false);
  CHECK_THROWS_WITH_AS(nowhere.save({folder.path / "step-1" / "state.json", 1, 1, "{}", "", 0}, state.values()),
                       doctest::Contains("state.json"), Error);
}
