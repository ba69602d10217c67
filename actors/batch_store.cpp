#include "actors/batch_store.h"

#include "base/bytes.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"

namespace troupe {
namespace {
constexpr uint32_t kFormat = 2;
}

std::filesystem::path batch_path(const std::filesystem::path& run_folder, int64_t step) {
  return run_folder / "batches" / concat("step-", step, ".bin");
}

void write_batch(const std::filesystem::path& run_folder, const TrainBatch& batch) {
  ByteWriter writer;
  writer.put<uint32_t>(kFormat);
  writer.put<int64_t>(batch.step);
  writer.put(batch.groups);
  writer.put(pack_trajectories(batch.trajectories));
  const auto bytes = writer.take();
  auto text = xxh3_128(bytes);
  text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto path = batch_path(run_folder, batch.step);
  make_folders(path.parent_path());
  write_file_atomically(path, text);
}

TrainBatch read_batch(const std::filesystem::path& run_folder, int64_t step) {
  const auto path = batch_path(run_folder, step);
  const auto text = read_file(path);
  constexpr size_t kDigits = 32;
  require(text.size() > kDigits, path.string(), ": too short for a batch");
  const auto bytes = std::as_bytes(std::span(text)).subspan(kDigits);
  require(xxh3_128(bytes) == text.substr(0, kDigits), path.string(), ": its bytes are not those that were written");
  ByteReader reader(bytes, path.string());
  const auto format = reader.get<uint32_t>();
  require(format == kFormat, path.string(), ": format ", format, " is not ", kFormat);
  TrainBatch batch;
  batch.step = reader.get<int64_t>();
  require(batch.step == step, path.string(), " holds the batch of step ", batch.step);
  batch.groups = reader.get_vector<uint64_t>();
  batch.trajectories = unpack_trajectories(reader.get_vector<std::byte>());
  reader.expect_end();
  return batch;
}

int64_t last_recorded_step(const std::filesystem::path& run_folder) {
  int64_t step = 0;
  while (std::filesystem::exists(batch_path(run_folder, step + 1))) ++step;
  return step;
}

}  // namespace troupe
