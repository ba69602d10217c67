// Checkpoints of sharded training state: written by all ranks at once, readable by any number of ranks (protocol.md,
// "Checkpoint"; invariant 9). A checkpoint exists once its folder has its name; until then it is `step-N.partial`.
//
//   save():        every rank copies its values -> barrier -> returns; the rest happens on a background thread a rank
//   background:    write rank-R.safetensors, sync, leave rank-R.json (pieces and hashes, or the error)
//   rank 0 waits:  all rank-R.json -> state.json, groups.bin, manifest.json, sync -> rename -> old ones removed
//
// The background threads meet through the folder, not through collectives: those belong to the training threads.
#pragma once

#include <atomic>
#include <filesystem>
#include <thread>

#include "parallel/fully_sharded.h"

namespace troupe {

/// What a checkpoint holds of the sharded tensors: by kind ("parameter", "exp_avg", "exp_avg_sq", ...), one flat tensor
/// a unit, cut like the unit's shard. Undefined tensors are left out (an optimizer may keep less for some units).
struct ShardedValues {
  std::vector<ShardPiece> pieces;
  std::map<std::string, std::vector<int64_t>> shapes;  // of the whole parameters
  std::map<std::string, std::vector<Tensor>> kinds;
};
/// The model's shards as kind "parameter" beside `optimizer_state`; tensors are shared, not copied.
ShardedValues sharded_values(FullyShardedDecoder& model,
                             std::map<std::string, std::vector<Tensor>> optimizer_state = {});

struct CheckpointRequest {
  std::filesystem::path folder;  // holds step-N; made where it does not exist
  int64_t step = 0, version = 0;
  std::string state_json, groups;  // rank 0's count
  int64_t keep_latest_k = 3;       // 0: all
  std::string world_json = "{}";   // of the layout that writes, for those who look into the manifest
};

struct CheckpointWriterOptions {
  bool is_async = false;
  std::chrono::milliseconds timeout = std::chrono::minutes(10);  // for the slowest rank's write
  /// How long the destructor lets a write under way go on (the run may be ending because a rank is gone).
  std::chrono::milliseconds grace = std::chrono::seconds(5);
  /// Rank 0, on the writing thread, once the checkpoint has its name.
  std::function<void(const std::filesystem::path&)> on_written = nullptr;
};

class CheckpointWriter {
 public:
  /// The ranks of one whole copy of the model; the group must outlive the writer.
  CheckpointWriter(Collectives& collectives, CheckpointWriterOptions options);
  /// Ends a write that is under way, or gives it up after the grace; an error is logged.
  ~CheckpointWriter();

  /// Every rank calls. Values are as of this call, whatever happens to the tensors afterwards. Throws the error of the
  /// previous write, naming its path; without `is_async` this write's own.
  void save(const CheckpointRequest& request, const ShardedValues& values);
  /// Waits for the write under way; throws its error once.
  void wait();
  /// Throws the error of a write that has ended, without waiting; for the edge between two steps.
  void check();

 private:
  using Clock = std::chrono::steady_clock;
  void finish();

  Collectives& collectives_;
  CheckpointWriterOptions options_;
  std::thread thread_;
  std::string error_;  // the thread's until `ended_`
  std::atomic<bool> ended_{true};
  std::atomic<Clock::rep> deadline_{0};  // of the wait for other ranks' parts
};

struct CheckpointInfo {
  std::filesystem::path path;
  int64_t step = 0, version = 0;
  std::string state_json, groups;
};

/// Checks manifest, sizes and hashes of one checkpoint and reads its small files. Throws Error naming what is wrong.
CheckpointInfo read_checkpoint_info(const std::filesystem::path& checkpoint);
/// The newest whole checkpoint in `folder`; warns of every newer one, and of every save that did not end, by name and
/// reason. None where there is none.
std::optional<CheckpointInfo> find_latest_checkpoint(const std::filesystem::path& folder);
/// Fills this rank's tensors of every kind in `values`, whatever layout wrote them. Throws Error naming kind and tensor
/// that is missing, misshaped or not whole. The caller has checked the hashes (the two functions above do).
void load_checkpoint_values(const std::filesystem::path& checkpoint, ShardedValues& values);

}  // namespace troupe
