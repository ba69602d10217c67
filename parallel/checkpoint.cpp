#include "parallel/checkpoint.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "models/formats/safetensors.h"
#include "parallel/checkpoint_folder.h"
#include "parallel/tensor_slices.h"

namespace troupe {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::string rank_file(int rank) { return concat("rank-", rank, ".safetensors"); }
std::string rank_note(int rank) { return concat("rank-", rank, ".json"); }

/// Name of a piece inside its file.
std::string piece_key(const std::string& kind, const std::string& name, const std::vector<int64_t>& start) {
  std::string key = concat(kind, "|", name, "|");
  for (size_t i = 0; i < start.size(); ++i) key += concat(i == 0 ? "" : ",", start[i]);
  return key;
}

/// Writes this rank's pieces and returns their part of the manifest: {kind: {name: {dtype, shape, pieces}}}.
json write_pieces(const fs::path& folder, int rank, const ShardedValues& values) {
  std::map<std::string, Tensor> tensors;
  json kinds = json::object();
  for (const auto& piece : values.pieces) {
    if (!piece.is_first) continue;
    const auto& shape = values.shapes.at(piece.name);
    for (const auto& [kind, units] : values.kinds) {
      const auto& unit = units.at(static_cast<size_t>(piece.unit));
      if (!unit.defined()) continue;
      auto& entry = kinds[kind][piece.name];
      entry["shape"] = shape;
      int64_t position = piece.shard_begin;
      for (const auto& box : boxes_in_part(piece.part, piece.flat_begin, piece.flat_end)) {
        const auto numel = c10::multiply_integers(box.size);
        const auto part = unit.narrow(0, position, numel).view(box.size);
        position += numel;
        const auto bytes = std::as_bytes(std::span(static_cast<const char*>(part.const_data_ptr()), part.nbytes()));
        entry["dtype"] = part.scalar_type() == at::kFloat ? "F32" : c10::toString(part.scalar_type());
        entry["pieces"].push_back(
            {{"file", rank_file(rank)}, {"start", box.start}, {"size", box.size}, {"xxh3_128", xxh3_128(bytes)}});
        tensors[piece_key(kind, piece.name, box.start)] = part;
      }
    }
  }
  write_safetensors(folder / rank_file(rank), tensors);
  return kinds;
}

/// The view of `tensor`, which holds `box`, that holds `part` of it.
Tensor narrow_to(Tensor tensor, const TensorBox& part, const TensorBox& box) {
  for (size_t i = 0; i < box.start.size(); ++i)
    tensor = tensor.narrow(static_cast<int64_t>(i), part.start[i] - box.start[i], part.size[i]);
  return tensor;
}

/// In pieces: a map of the whole file would count as memory of the run, beside its weights.
json file_entry(const fs::path& path) {
  uint64_t num_bytes = 0;
  Hasher hasher;
  read_file_in_pieces(path, [&](std::span<const std::byte> piece) {
    num_bytes += piece.size();
    hasher.update(piece);
  });
  return {{"bytes", num_bytes}, {"xxh3_128", hasher.digest()}};
}

json read_json(const fs::path& path) {
  const auto parsed = json::parse(read_file(path), nullptr, false);
  require(!parsed.is_discarded(), path.string(), " is not JSON");
  return parsed;
}

using Deadline = std::atomic<std::chrono::steady_clock::rep>;

/// Rank 0: takes every rank's note as it comes. The deadline may be drawn nearer meanwhile.
std::vector<json> await_notes(const fs::path& folder, int num_ranks, const Deadline& deadline) {
  std::vector<json> notes;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const auto path = folder / rank_note(rank);
    while (!fs::exists(path)) {
      require(std::chrono::steady_clock::now().time_since_epoch().count() < deadline, "rank ", rank,
              " did not finish its part within the time limit");
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    notes.push_back(read_json(path));
    if (notes.back().contains("error")) fail("rank ", rank, ": ", notes.back()["error"].get<std::string>());
    fs::remove(path);
  }
  return notes;
}

void commit(const fs::path& partial, const fs::path& final_path, const CheckpointRequest& request,
            const std::vector<json>& notes) {
  json manifest{{"format", 1},
                {"step", request.step},
                {"version", request.version},
                {"world", json::parse(request.world_json)},
                {"tensors", json::object()},
                {"optimizer", json::object()},
                {"files", json::object()}};
  write_file_synced(partial / "state.json", request.state_json);
  write_file_synced(partial / "groups.bin", request.groups);
  for (const char* name : {"state.json", "groups.bin"}) manifest["files"][name] = file_entry(partial / name);
  for (size_t rank = 0; rank < notes.size(); ++rank) {
    manifest["files"][rank_file(static_cast<int>(rank))] = notes[rank]["file"];
    for (const auto& [kind, names] : notes[rank]["kinds"].items()) {
      for (const auto& [name, entry] : names.items()) {
        auto& target = kind == "parameter" ? manifest["tensors"][name] : manifest["optimizer"][name][kind];
        target["dtype"] = entry["dtype"];
        target["shape"] = entry["shape"];
        for (const auto& piece : entry["pieces"]) target["pieces"].push_back(piece);
      }
    }
  }
  write_file_synced(partial / "manifest.json", manifest.dump());
  sync_folder(partial);
  replace_folder(partial, final_path);
  sync_folder(request.folder);
  try {
    remove_older_checkpoints(request.folder, request.step, request.keep_latest_k);
  } catch (const std::exception& error) {
    log::warning("checkpoint ", final_path.string(),
                 " is written, but an older one could not be removed: ", error.what());
  }
}

/// The background part of one rank.
void write_checkpoint(const CheckpointRequest& request, const ShardedValues& values, int rank, int num_ranks,
                      const Deadline& deadline) {
  const auto final_path = request.folder / concat("step-", request.step);
  auto partial = final_path;
  partial += ".partial";
  try {
    const auto kinds = write_pieces(partial, rank, values);
    write_file_atomically(partial / rank_note(rank),
                          json{{"kinds", kinds}, {"file", file_entry(partial / rank_file(rank))}}.dump());
    if (rank == 0) commit(partial, final_path, request, await_notes(partial, num_ranks, deadline));
  } catch (const std::exception& error) {
    std::error_code ignored;
    if (rank == 0) {
      fs::remove_all(partial, ignored);
    } else {
      fs::remove(partial / rank_file(rank), ignored);  // makes room for the note on a full disk
      try {
        write_file_atomically(partial / rank_note(rank), json{{"error", error.what()}}.dump());
      } catch (const std::exception&) {
        // Rank 0 has given up already and removed the folder; this rank's own error tells the rest.
      }
    }
    throw Error(concat("checkpoint ", final_path.string(), " was not written: ", error.what()));
  }
}

}  // namespace

ShardedValues sharded_values(FullyShardedDecoder& model, std::map<std::string, std::vector<Tensor>> optimizer_state) {
  ShardedValues values{model.pieces(), {}, std::move(optimizer_state)};
  for (const auto& spec : model.plan().whole_specs()) values.shapes[spec.name] = spec.shape;
  auto& parameters = values.kinds["parameter"];
  for (auto& shard : model.shards()) parameters.push_back(shard.parameter);
  return values;
}

CheckpointWriter::CheckpointWriter(Collectives& collectives, CheckpointWriterOptions options)
    : collectives_(collectives), options_(std::move(options)) {}

CheckpointWriter::~CheckpointWriter() {
  deadline_ = std::min(deadline_.load(), (Clock::now() + options_.grace).time_since_epoch().count());
  finish();
  if (!error_.empty()) log::error(error_);
}

void CheckpointWriter::finish() {
  if (thread_.joinable()) thread_.join();
}

void CheckpointWriter::wait() {
  finish();
  if (!error_.empty()) throw Error(std::exchange(error_, {}));
}

void CheckpointWriter::check() {
  if (ended_) wait();
}

void CheckpointWriter::save(const CheckpointRequest& request, const ShardedValues& values) {
  wait();
  if (collectives_.rank() == 0) {
    const auto partial = request.folder / concat("step-", request.step, ".partial");
    std::error_code error;
    fs::remove_all(partial, error);  // of a save that was killed
    if (error) fail("checkpoint: cannot remove ", partial.string(), ": ", error.message());
    make_folders(partial);
  }
  auto snapshot = std::make_shared<ShardedValues>(values);
  for (auto& [kind, units] : snapshot->kinds) {
    for (auto& unit : units) {
      if (unit.defined())
        unit = unit.detach().to(at::kCPU, unit.scalar_type(), /*non_blocking=*/false, /*copy=*/options_.is_async);
    }
  }
  collectives_.barrier(concat("checkpoint of step ", request.step));
  deadline_ = (Clock::now() + options_.timeout).time_since_epoch().count();
  const auto write = [this, request, snapshot, rank = collectives_.rank(), size = collectives_.size()] {
    try {
      write_checkpoint(request, *snapshot, rank, size, deadline_);
      if (rank == 0 && options_.on_written) options_.on_written(request.folder / concat("step-", request.step));
    } catch (const std::exception& error) {
      error_ = error.what();
    }
    ended_ = true;
  };
  ended_ = false;
  if (options_.is_async) {
    thread_ = std::thread(write);
    return;
  }
  write();
  wait();
  collectives_.barrier(concat("checkpoint of step ", request.step, " written"));
}

CheckpointInfo read_checkpoint_info(const fs::path& checkpoint) {
  require(fs::exists(checkpoint / "manifest.json"), checkpoint.string(), " has no manifest.json: it is not whole");
  const auto manifest = read_json(checkpoint / "manifest.json");
  require(manifest.is_object() && manifest.contains("files") && manifest.contains("tensors") &&
              manifest.contains("optimizer") && manifest.value("format", json()) == 1,
          checkpoint.string(), ": manifest.json is not of format 1");
  try {
    for (const auto& [name, entry] : manifest["files"].items()) {
      const auto path = checkpoint / name;
      require(fs::exists(path), checkpoint.string(), ": ", name, " is missing");
      const auto bytes = fs::file_size(path);
      require(bytes == entry.at("bytes").get<uint64_t>(), path.string(), " has ", bytes, " bytes instead of ",
              entry.at("bytes").get<uint64_t>());
      require(file_entry(path)["xxh3_128"] == entry.at("xxh3_128"), path.string(),
              ": its hash differs from the manifest's");
    }
    return {checkpoint, manifest.at("step"), manifest.at("version"), read_file(checkpoint / "state.json"),
            read_file(checkpoint / "groups.bin")};
  } catch (const json::exception& error) {
    fail(checkpoint.string(), ": manifest.json: ", error.what());
  }
}

std::optional<CheckpointInfo> find_latest_checkpoint(const fs::path& folder) {
  if (!fs::is_directory(folder)) return std::nullopt;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.is_directory() && entry.path().extension() == ".partial")
      log::warning("checkpoint ", entry.path().string(), " is left out: its save did not end");
  }
  for (const auto& path : checkpoints_newest_first(folder)) {
    try {
      return read_checkpoint_info(path);
    } catch (const std::exception& error) {
      log::warning("checkpoint ", path.string(), " is left out: ", error.what());
    }
  }
  return std::nullopt;
}

void load_checkpoint_values(const fs::path& checkpoint, ShardedValues& values) try {
  const at::NoGradGuard no_grad;
  const auto manifest = read_json(checkpoint / "manifest.json");
  std::map<std::string, std::unique_ptr<SafetensorsFile>> files;
  for (const auto& piece : values.pieces) {
    const auto& shape = values.shapes.at(piece.name);
    for (auto& [kind, units] : values.kinds) {
      auto& unit = units.at(static_cast<size_t>(piece.unit));
      if (!unit.defined()) continue;
      const auto& tensors = manifest[kind == "parameter" ? "tensors" : "optimizer"];
      const bool is_there = tensors.contains(piece.name) && (kind == "parameter" || tensors[piece.name].contains(kind));
      require(is_there, checkpoint.string(), ": no ", kind, " of ", piece.name);
      const auto& entry = kind == "parameter" ? tensors[piece.name] : tensors[piece.name][kind];
      const auto stored_shape = entry["shape"].get<std::vector<int64_t>>();
      require(stored_shape == shape, checkpoint.string(), ": ", piece.name, " has shape ",
              at::IntArrayRef(stored_shape), " instead of ", at::IntArrayRef(shape));
      int64_t num_filled = 0, position = piece.shard_begin;
      for (const auto& target : boxes_in_part(piece.part, piece.flat_begin, piece.flat_end)) {
        const auto numel = c10::multiply_integers(target.size);
        const auto place = unit.narrow(0, position, numel).view(target.size);
        position += numel;
        for (const auto& stored : entry["pieces"]) {
          const TensorBox box{stored["start"], stored["size"]};
          const auto common = intersection(target, box);
          if (!common) continue;
          const auto name = stored["file"].get<std::string>();
          auto& file = files[name];
          if (!file) file = std::make_unique<SafetensorsFile>(checkpoint / name);
          const auto key = piece_key(kind, piece.name, box.start);
          narrow_to(place, *common, target).copy_(narrow_to(file->tensor(key).view(box.size), *common, box));
          num_filled += c10::multiply_integers(common->size);
          file->release_pages(key);
        }
      }
      require(num_filled == piece.flat_end - piece.flat_begin, checkpoint.string(), ": ", kind, " of ", piece.name,
              " is not whole");
    }
  }
} catch (const json::exception& error) {
  fail(checkpoint.string(), ": manifest.json: ", error.what());
}

}  // namespace troupe
