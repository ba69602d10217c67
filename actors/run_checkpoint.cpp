#include "actors/run_checkpoint.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "models/formats/safetensors.h"

namespace troupe {
namespace {

namespace fs = std::filesystem;

/// Kinds of values a checkpoint holds of each parameter: the weights and the optimizer's moments.
std::map<std::string, std::vector<Tensor>> values_by_kind(Learner& learner) {
  auto kinds = learner.optimizer_state();
  auto& parameters = kinds["parameter"];
  for (auto& shard : learner.model().shards()) parameters.push_back(shard.parameter);
  return kinds;
}

std::string hash_of(const fs::path& path) {
  const MappedFile file(path);
  return xxh3_128(file.bytes());
}

std::string rank_file(int rank) { return concat("rank-", rank, ".safetensors"); }

/// Slices of flattened parameters: "kind|name|flat_begin".
void write_rank(const fs::path& folder, Learner& learner, int rank) {
  std::map<std::string, Tensor> tensors;
  const auto kinds = values_by_kind(learner);
  for (const auto& piece : learner.model().pieces()) {
    const auto size = piece.flat_end - piece.flat_begin;
    if (size == 0) continue;
    for (const auto& [kind, units] : kinds) {
      const auto& unit = units.at(static_cast<size_t>(piece.unit));
      if (unit.defined())
        tensors[concat(kind, "|", piece.name, "|", piece.flat_begin)] =
            unit.detach().narrow(0, piece.shard_begin, size);
    }
  }
  write_safetensors(folder / rank_file(rank), tensors);
}

void write_manifest(const fs::path& folder, const CheckpointWrite& write, int num_ranks, int64_t learner_step) {
  nlohmann::json files = nlohmann::json::object();
  for (const auto& entry : fs::directory_iterator(folder)) {
    const auto name = entry.path().filename().string();
    files[name] = {{"bytes", fs::file_size(entry.path())}, {"xxh3_128", hash_of(entry.path())}};
  }
  const nlohmann::json manifest{{"format", 1},
                                {"step", write.step},
                                {"version", write.step},
                                {"learner_step", learner_step},
                                {"world", {{"data_parallel_shard", num_ranks}}},
                                {"files", std::move(files)}};
  write_file_synced(folder / "manifest.json", manifest.dump(1));
}

int64_t step_of(const fs::path& path) {
  const auto name = path.filename().string();
  if (!name.starts_with("step-") || name.find_first_not_of("0123456789", 5) != std::string::npos || name.size() == 5)
    return -1;
  return std::stoll(name.substr(5));
}

std::vector<fs::path> newest_first(const fs::path& folder) {
  std::vector<fs::path> all;
  if (fs::is_directory(folder))
    for (const auto& entry : fs::directory_iterator(folder))
      if (entry.is_directory() && step_of(entry.path()) >= 0) all.push_back(entry.path());
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return step_of(a) > step_of(b); });
  return all;
}

}  // namespace

void save_checkpoint(const CheckpointWrite& write, Learner& learner, Collectives& collectives) {
  const auto folder = write.folder / concat("step-", write.step),
             partial = write.folder / concat("step-", write.step, ".partial");
  if (collectives.rank() == 0) {
    fs::remove_all(partial);
    make_folders(partial);
  }
  collectives.barrier("checkpoint: folder");
  write_rank(partial, learner, collectives.rank());
  collectives.barrier("checkpoint: pieces");
  if (collectives.rank() == 0) {
    write_file_synced(partial / "state.json", write.state_json);
    write_file_synced(partial / "groups.bin", write.groups);
    write_manifest(partial, write, collectives.size(), learner.step());
    sync_folder(partial);
    fs::remove_all(folder);
    fs::rename(partial, folder);
    sync_folder(write.folder);
    if (write.keep_latest_k > 0) {
      const auto all = newest_first(write.folder);
      for (size_t i = static_cast<size_t>(write.keep_latest_k); i < all.size(); ++i) fs::remove_all(all[i]);
    }
  }
  collectives.barrier("checkpoint: written");
}

void load_checkpoint(const fs::path& checkpoint, Learner& learner) {
  const auto manifest = nlohmann::json::parse(read_file(checkpoint / "manifest.json"));
  struct Slice {
    int64_t begin;
    Tensor values;
  };
  std::map<std::string, std::vector<Slice>> slices;  // "kind|name" -> slices
  for (int rank = 0; rank < manifest.at("world").at("data_parallel_shard").get<int>(); ++rank) {
    const SafetensorsFile file(checkpoint / rank_file(rank));
    for (const auto& [key, entry] : file.entries()) {
      const auto bar = key.rfind('|');
      slices[key.substr(0, bar)].push_back({std::stoll(key.substr(bar + 1)), file.tensor(key)});
    }
  }
  const at::NoGradGuard no_grad;
  learner.set_step(manifest.at("learner_step"));
  auto kinds = values_by_kind(learner);
  for (const auto& piece : learner.model().pieces()) {
    for (auto& [kind, units] : kinds) {
      auto& unit = units.at(static_cast<size_t>(piece.unit));
      if (!unit.defined() || piece.flat_end == piece.flat_begin) continue;
      const auto found = slices.find(concat(kind, "|", piece.name));
      require(found != slices.end(), checkpoint.string(), ": no ", kind, " of ", piece.name);
      int64_t num_filled = 0;
      for (const auto& slice : found->second) {
        const auto begin = std::max(slice.begin, piece.flat_begin);
        const auto end = std::min(slice.begin + slice.values.numel(), piece.flat_end);
        if (begin >= end) continue;
        unit.narrow(0, piece.shard_begin + begin - piece.flat_begin, end - begin)
            .copy_(slice.values.narrow(0, begin - slice.begin, end - begin));
        num_filled += end - begin;
      }
      require(num_filled == piece.flat_end - piece.flat_begin, checkpoint.string(), ": ", kind, " of ", piece.name,
              " is not whole");
    }
  }
}

FoundCheckpoint read_checkpoint(const fs::path& checkpoint) {
  require(fs::exists(checkpoint / "manifest.json"), checkpoint.string(), ": no manifest.json, not a whole checkpoint");
  const auto manifest = nlohmann::json::parse(read_file(checkpoint / "manifest.json"), nullptr, false);
  require(manifest.is_object() && manifest.contains("files"), checkpoint.string(), ": manifest.json is damaged");
  for (const auto& [name, entry] : manifest["files"].items()) {
    require(fs::exists(checkpoint / name), checkpoint.string(), ": ", name, " is missing");
    require(fs::file_size(checkpoint / name) == entry.at("bytes").get<uint64_t>(), checkpoint.string(), ": ", name,
            " has another size");
    require(hash_of(checkpoint / name) == entry.at("xxh3_128").get<std::string>(), checkpoint.string(), ": ", name,
            " has another hash");
  }
  return {checkpoint, nlohmann::json::parse(read_file(checkpoint / "state.json")),
          read_file(checkpoint / "groups.bin")};
}

std::optional<FoundCheckpoint> find_checkpoint(const fs::path& folder) {
  for (const auto& path : newest_first(folder)) {
    try {
      return read_checkpoint(path);
    } catch (const std::exception& error) {
      log::warning("checkpoint passed over: ", error.what());
    }
  }
  return std::nullopt;
}

}  // namespace troupe
